"""The compiler is this project's own."""

import ast
from pathlib import Path

from magpy_like.compiler import compile_fx


def imported(path):
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_file_of_the_compiler_imports_inductor():
    files = list(Path(compile_fx.__code__.co_filename).parent.rglob("*.py"))
    assert len(files) > 30
    assert [(f, name) for f in files for name in imported(f) if "_inductor" in name] == []


def test_the_search_sees_imports_of_every_form(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "def f():\n    from torch import _inductor\n    import torch._inductor.config\n"
    )
    assert [name for name in imported(file) if "_inductor" in name] == [
        "torch._inductor",
        "torch._inductor.config",
    ]
