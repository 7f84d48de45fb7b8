"""Variables of the environment: units, limits, and values that cannot be read."""

import math
import warnings

import pytest

from magpy_like.disk_cache import user_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10GB", 10e9), ("500 mb", 5e8), ("2GiB", 2**31), ("1.5k", 1500), ("7", 7), ("1e9", 1e9),
        ("0", 0), ("unlimited", math.inf), ("none", math.inf), ("3 TiB", 3 * 2**40),
    ],
)  # fmt: skip
def test_sizes_have_units(text, expected):
    assert user_settings.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "many", "10XB", "-1", "1..2", "GB", "i", "1 iB", "nan", "é"])
def test_other_texts_are_rejected(text):
    with pytest.raises(ValueError):
        user_settings.parse_size(text)


@pytest.mark.parametrize(
    ("variable", "read", "default"),
    [
        ("MAGPY_CACHE_SIZE", user_settings.size_limit, 10e9),
        ("MAGPY_COMPILER_TIMEOUT", user_settings.compiler_timeout, 300),
    ],
)
def test_value_that_is_no_number_is_reported_once(monkeypatch, variable, read, default):
    assert read() == default
    monkeypatch.setenv(variable, "many")
    with pytest.warns(UserWarning, match=f"{variable}='many' is neither a limit"):
        assert read() == default
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read() == default
    monkeypatch.setenv(variable, "12")
    assert read() == 12


@pytest.mark.parametrize(("text", "expected"), [("0.5", 0.5), ("1e3", 1000), ("none", math.inf)])
def test_times_are_seconds(text, expected):
    assert user_settings.parse_seconds(text) == expected


@pytest.mark.parametrize("text", ["5m", "0", "-1", "nan", ""])
def test_other_times_are_rejected(text):
    with pytest.raises(ValueError):
        user_settings.parse_seconds(text)
