"""Private names of torch: declared in ``magpy_like.torch_compat`` and used nowhere else."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

from magpy_like import torch_compat

ROOT = Path(__file__).parents[1]
PACKAGES = ("magpy_like", "benchmarks", "paritybench_runner", "zoo")
PREFIX = "magpy_like.torch_compat."
MODULES = [
    module.name.removeprefix(PREFIX)
    for module in pkgutil.walk_packages(torch_compat.__path__, PREFIX)
    if not module.ispkg
]
ALLOWED = {
    # names that are assigned to, and a call that belongs to the assignment
    "magpy_like/torch_patches.py": {
        "torch.compiler._is_compiling_flag",
        "torch._C",
        "torch.fx.graph_module._exec_with_source",
        "torch.jit._recursive",
        "torch.jit._state",
    },
}


def is_private(name):
    """True if a part of a dotted name is private; operators' names (``aten._to_copy``) are not."""
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"]:
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def private_names(source):
    """Private names of torch that source text imports or reaches by attributes, with lines."""
    tree = ast.parse(source)
    meaning = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    meaning[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    if is_private(alias.name):
                        yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                meaning[alias.asname or alias.name] = full
                if is_private(full):
                    yield full, node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            first, *rest = ast.unparse(node).split(".")
            full = ".".join([meaning.get(first, "other"), *rest])
            if full.startswith("torch.") and full.replace(".", "").isidentifier():
                if is_private(full) and not is_private(full.rpartition(".")[0]):
                    yield full, node.lineno


@pytest.mark.parametrize("name", MODULES)
def test_every_declared_name_exists(name):
    module = importlib.import_module(PREFIX + name)
    for declared in module.__all__:
        assert hasattr(module, declared)
    package = importlib.import_module(module.__package__)
    assert f"``{name.rpartition('.')[2]}``" in package.__doc__


def test_private_names_of_torch_are_imported_from_torch_compat():
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith("magpy_like/torch_compat/"):
            continue
        found += [
            f"{file}:{line} uses {name}: declare it in magpy_like/torch_compat and import it there"
            for name, line in private_names(path.read_text())
            if name not in ALLOWED.get(file, ())
        ]
    assert found == []


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import torch\ntorch._C._nn.linear", ["torch._C"]),
        ("from torch.utils import _pytree as pytree", ["torch.utils._pytree"]),
        ("import torch._dynamo", ["torch._dynamo"]),
        ("from torch.autograd import forward_ad\nforward_ad._current_level", [
            "torch.autograd.forward_ad._current_level"
        ]),
        ("import torch\ntorch.ops.aten._to_copy.default\ntorch.__version__", []),
        ("x._private", []),
    ],
)  # fmt: skip
def test_private_names_of_every_form_are_found(source, expected):
    assert [name for name, _ in private_names(source)] == expected
