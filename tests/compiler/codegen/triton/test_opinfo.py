"""Operators of torch's OpInfo database through the Triton printer."""

import zlib

import pytest
import torch

from tests.compiler.opinfo.test_opinfo import NAMES, check

pytestmark = pytest.mark.usefixtures("printed")
SOME = [name for name in NAMES if zlib.crc32(name.encode()) % 40 == 1]


@pytest.mark.parametrize("name", SOME)
def test_sample_of_operators_equals_eager(name):
    check(name, [torch.float32], limit=2)
    check(name, [torch.float32], gradient=True, limit=2)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_equals_eager(name):
    check(name, [torch.float32, torch.int64, torch.bool], limit=4)
