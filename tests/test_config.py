"""Fields of the configuration: documented, used, and effective when changed."""

import ast
import dataclasses
import inspect
import pathlib

import pytest
import torch

import magpy_like as magpy
from magpy_like import config as module
from magpy_like.config import Config, config


def test_every_field_has_a_description():
    (body,) = [n.body for n in ast.parse(inspect.getsource(Config)).body]
    described = {
        field.target.id
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert described == {field.name for field in dataclasses.fields(Config)}


def test_every_field_is_used():
    package = pathlib.Path(module.__file__).parent
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    unused = [f.name for f in dataclasses.fields(Config) if f"config.{f.name}" not in source]
    assert not unused


def test_changed_limit_takes_effect(monkeypatch):
    monkeypatch.setattr(config, "record_limit", 2)
    fast = magpy.compile(lambda x, kind: x + (kind is int), backend="eager")
    with pytest.warns(UserWarning, match="2 records did not match"):
        for kind in (int, str, list, dict):
            fast(torch.ones(2), kind)
    assert magpy.cache_info(fast).records == 2
