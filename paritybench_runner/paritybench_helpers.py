"""Replacement for the module `_paritybench_helpers` that ParityBench's generated files import.

The module in the checkout imports the compilers that it was written to measure. This one defines
the same names with the same behaviour for the generated code.
"""

import types
import unittest
from collections.abc import Callable
from typing import Any

import torch


class PlaceholderLayer(torch.nn.ReLU):
    """Placeholder for a layer or block of a program that ParityBench's generator did not find."""

    expansion = 1

    def __repr__(self) -> str:
        return "_mock_layer()"


def _mock_layer(
    in_features: int | None = None, out_features: int | None = None, *args: Any, **kwargs: Any
) -> torch.nn.Module:
    if in_features and out_features:
        return torch.nn.Linear(in_features, out_features, **kwargs)
    return PlaceholderLayer()


class _mock_config(dict):
    __getattr__ = dict.__getitem__


def patch_functional() -> None:
    """Merges `torch.functional` and `torch.nn.functional`: the files import both as `F`."""
    modules = torch.functional, torch.nn.functional
    for source, target in (modules, modules[::-1]):
        for name in vars(source):
            if name[:1].islower() and not hasattr(target, name):
                setattr(target, name, getattr(source, name))


def _fails_compile() -> Callable[[Any], Any]:
    return lambda test: test


def make_module() -> types.ModuleType:
    """Returns a new module `_paritybench_helpers`."""
    helpers = types.ModuleType("_paritybench_helpers")
    helpers.__dict__.update(
        _mock_layer=_mock_layer,
        _mock_config=_mock_config,
        patch_functional=patch_functional,
        _fails_compile=_fails_compile,
        _paritybench_base=unittest.TestCase,
    )
    return helpers
