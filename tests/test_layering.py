"""Layers of magpy_like: packages import only lower layers, and no imports form a cycle.

Imports at run time count, at the top level and inside functions, but not those under
``TYPE_CHECKING``. For cycles, only imports at the top level count.
"""

import ast
from pathlib import Path

import pytest

import magpy_like

ROOT = Path(magpy_like.__file__).parent

# --- allowed imports, from the lowest layer to the highest ----------------------------------------

OF_TORCH = {"torch_compat", "torch_patches"}
LEAVES = OF_TORCH | {
    "active_run", "annotation", "bytecode", "config", "disk_cache", "errors", "graph_operators",
    "interruption", "logs", "native", "refgraph", "split_points", "split_reasons", "torch_interop",
}  # fmt: skip
LAYERS = {
    "split_reasons": set(),
    "config": set(),
    "errors": {"split_reasons"},
    "logs": {"config"},
    "command_group": {"errors"},
    "bytecode": set(),
    "torch_compat": set(),
    "compile_modes": {"errors", "torch_compat"},
    "arguments": {"errors"},
    "torch_patches": {"torch_compat"},
    "disk_cache": {"config", "errors"},
    "native": {"bytecode", "config", "disk_cache", "errors"},
    "interruption": {"disk_cache", "native"},
    "torch_interop": {"config", "interruption"} | OF_TORCH,
    "annotation": {"arguments", "command_group", "config", "errors", "native", "split_reasons"}
    | OF_TORCH,
    "refgraph": {"annotation", "config", "native"} | OF_TORCH,
    "active_run": set(),
    "split_points": {"config", "refgraph", "split_reasons"},
    "graph_operators": {"config", "torch_interop"} | OF_TORCH,
    "monitor": LEAVES,
    "splitting": LEAVES | {"monitor"},
    "control_flow": LEAVES | {"monitor", "splitting"},
    "synthesis": LEAVES | {"monitor", "splitting"},
    "compiler": {
        "annotation",
        "compile_modes",
        "config",
        "disk_cache",
        "errors",
        "graph_operators",
        "interruption",
        "logs",
        "native",
        "torch_interop",
    }
    | OF_TORCH,
    "records": LEAVES
    | {
        "arguments",
        "compile_modes",
        "compiler",
        "control_flow",
        "monitor",
        "splitting",
        "synthesis",
    },
    "wrapper_classes": {"monitor", "native"},
    "compiled_module": LEAVES | {"wrapper_classes", "monitor", "records"},
    "compiled_class": LEAVES | {"wrapper_classes", "monitor"},
    "disabled_module": {"wrapper_classes", "monitor"},
    "api": LEAVES
    | {"arguments", "compiled_class", "compiled_module", "compiler", "disabled_module"}
    | {"wrapper_classes", "monitor", "records"},
    "doctor": {"api", "bytecode", "disk_cache", "errors", "native", "torch_compat"},
    "integrations": {"api"},
    "cli": {"annotation", "api", "command_group", "config", "disk_cache", "doctor", "errors"},
    "__main__": {"cli"},
    "__init__": {"annotation", "api", "bytecode", "config", "errors", "records", "split_reasons"},
}
REASONS = {
    "compiler": "the compiler accepts torch.fx graphs of any origin: it is independent of capture",
    "monitor": "the monitor records a run; packages that use recordings are in higher layers",
    "torch_interop": "torch's state is changed for all layers above; tracing is own work",
    "splitting": "continuations are built from frames and instructions, not from records",
    "control_flow": "branches and loops are recorded through the monitor",
    "synthesis": "guard and mock are built from a recording; the backend is passed as a function",
}
TORCHS_COMPILERS = ("torch._inductor.", "torch._dynamo.")
DYNAMO = "torch_compat/dynamo.py"
FROM_TORCHS_COMPILERS = {
    # the registry of backends
    "torch._dynamo.list_backends",
    "torch._dynamo.lookup_backend",
    "torch._dynamo.reset",
    # the exception that a backend must let pass, marks on code, counters for benchmarks
    "torch._dynamo.exc.RestartAnalysis",
    "torch._dynamo.types.FrameAction",
    "torch._dynamo.types.FrameExecStrategy",
    "torch._dynamo.utils.counters",
    # options of the backend "inductor"
    "torch._inductor",
}
"""What ``torch_compat.dynamo`` may import of torch's own compilers."""


# --- imports of a file ----------------------------------------------------------------------------


def imports(source, *, only_top_level=False):
    """Dotted names that source text imports at run time, and their lines."""

    def visit(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from visit(node.orelse)
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if not (only_top_level and is_function):
                yield from visit(ast.iter_child_nodes(node))

    return list(visit(ast.parse(source).body))


def layer_of(name):
    """The package or module directly below magpy_like that contains a dotted name."""
    return (name.split(".") + ["__init__"])[1]


def modules():
    """Files by the dotted name of their module."""
    return {
        ".".join(("magpy_like", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sorted(ROOT.rglob("*.py"))
    }


def violations():
    for name, path in modules().items():
        own = layer_of(name)
        for imported, line in imports(path.read_text()):
            other = layer_of(imported)
            if imported.startswith("magpy_like.") and other != own and other not in LAYERS[own]:
                if (ROOT / f"{other}.py").exists() or (ROOT / other).is_dir():
                    yield f"{path.relative_to(ROOT)} imports {other}", line, own


# --- tests ----------------------------------------------------------------------------------------


def test_every_package_has_a_layer():
    assert {layer_of(name) for name in modules()} <= LAYERS.keys()


def test_layer_table_has_no_cycle():
    below = set()
    for name, allowed in LAYERS.items():
        assert allowed - {name} <= below | {"compiler"}, f"{name} may import a higher layer"
        below.add(name)


def test_packages_import_only_lower_layers():
    found = {}
    for violation, line, own in violations():
        reason = REASONS.get(own, f"{own} may import only {sorted(LAYERS[own]) or 'nothing'}")
        found.setdefault(violation, f"{violation} (line {line}): {reason}")
    assert list(found.values()) == []


def test_no_imports_form_a_cycle():
    files = modules()
    edges = {
        name: {
            imported if imported in files else imported.rpartition(".")[0]
            for imported, _ in imports(path.read_text(), only_top_level=True)
            if imported.startswith("magpy_like.")
        }
        - {name}
        for name, path in files.items()
    }
    waiting = dict(edges)
    # A module is importable once all its imports are; the modules that remain form cycles.
    while ready := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in ready:
            del waiting[name]
    inside = {name for name in waiting if any(name in needs for needs in waiting.values())}
    assert {name: sorted(waiting[name] & inside) for name in inside} == {}


def test_no_module_imports_compilers_of_torch():
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in modules().values()
        for imported, line in imports(path.read_text())
        if f"{imported}.".startswith(TORCHS_COMPILERS)
        and not (path.relative_to(ROOT).as_posix() == DYNAMO and imported in FROM_TORCHS_COMPILERS)
    ]
    assert found == [], "Dynamo's tracer and Inductor's compiler are not used"


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import torch._inductor.config", {"torch._inductor.config"}),
        ("def f():\n    from torch import _inductor", {"torch._inductor"}),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", {"b"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
    ],
)
def test_imports_of_every_form_are_found(source, expected):
    assert {name for name, _ in imports(source)} == expected


def test_imports_inside_functions_are_not_top_level():
    assert imports("import a\ndef f():\n    import b", only_top_level=True) == [("a", 1)]
