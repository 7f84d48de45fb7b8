"""The generated parts of the documentation: `make outputs` writes them, a test compares them.

`docs/architecture.md` shows one program's real output between marks such as
``<!-- output: guard -->`` and ``<!-- end -->``; `docs/glossary.md` is a table made of
`docs/glossary.tsv`. The picture of the RefGraph is drawn by Graphviz's ``dot``; without it the
committed picture stays, which the test holds against the graph that it was drawn from.
"""

from __future__ import annotations

import contextlib
import hashlib
import opcode
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import magpy_like as magpy
from docs.followed_program import gated
from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.codegen.triton import triton_printer
from magpy_like.compiler.scheduling.scheduler import Scheduler
from magpy_like.monitor.instructions.rule_table import load_rules
from magpy_like.records import dispatcher
from magpy_like.refgraph.rendering import to_dot, to_text
from tests.compiler.codegen.triton.fake_gpu import lowered

FOLDER = Path(__file__).parent
VERSIONS = ((3, 11), "2.13")
"""The Python and torch whose bytecode and graphs the page shows."""
PAGE = FOLDER / "architecture.md"
GLOSSARY = FOLDER / "glossary.md"
PICTURE = FOLDER / "refgraph.svg"
_MARKED = re.compile(r"<!-- output: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def is_shown_here() -> bool:
    """True if this interpreter and torch are those of the page."""
    python, torch_version = VERSIONS
    return sys.version_info[:2] == python and torch.__version__.startswith(torch_version)


def arguments() -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Arguments of the followed program: 4 rows of 64, a weight with gradients, a state."""
    return torch.ones(4, 64), torch.ones(64, requires_grad=True), {"calls": 0}


def follow() -> dict[str, tuple[str, str]]:
    """Each stage's language and text, by the name that the page marks it with."""
    magpy.reset()
    events: list[str] = []
    graphs: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder, _events(events), _refgraphs(graphs):
        compiled = magpy.compile(gated, options={"trace": folder})
        compiled(*arguments())
        result = compiled(*arguments())
        result.sum().backward()
        stages = {path.stem: path.read_text() for path in Path(folder).rglob("*.*")}
        stages["kernels"] = next(Path(folder).rglob("*_kernels_forward.cpp")).read_text()
    report = magpy.explain(gated, *arguments())
    guard, _, mock = report.source.partition("def mock")
    return {
        "program": ("python", _source()),
        "events": ("text", "\n".join(events)),
        "refgraph": ("text", graphs[0][0]),
        "dot": ("text", graphs[0][1]),
        "guard": ("python", guard.strip()),
        "conditions": ("text", "\n".join(report.guards)),
        "mock": ("python", f"def mock{mock}".strip()),
        "operator-graph": ("python", _graph(stages["0_fx_graph"])),
        "aten-forward": ("python", _graph(stages["3_passes_forward"])),
        "aten-backward": ("python", _graph(stages["3_passes_backward"])),
        "loop-ir": ("text", stages["4_ir_forward"].strip()),
        "schedule": ("text", stages["5_schedule_forward"].strip()),
        "cpp": ("cpp", _function(stages["kernels"])),
        "triton": ("python", _triton().strip()),
        "launcher": ("python", stages["7_launcher_forward"].strip()),
    }


@contextlib.contextmanager
def _events(found: list[str]) -> Iterator[None]:
    """Append a line for each instruction that reaches a rule."""
    rules = load_rules().rules
    originals = dict(rules)

    def shown(rule: Callable[..., Any]) -> Callable[..., Any]:
        module = rule.__module__.rpartition(".")[2]

        def reported(context: Any, step: Any) -> Any:
            line = f"line {step.frame.f_lineno}  offset {step.offset:3}"
            name = opcode.opname[step.opcode]
            found.append(f"{line}  {name:14} {module}.{rule.__name__}")
            return rule(context, step)

        return reported

    try:
        rules.update((number, shown(rule)) for number, rule in originals.items())
        yield
    finally:
        rules.update(originals)


@contextlib.contextmanager
def _refgraphs(found: list[tuple[str, str]]) -> Iterator[None]:
    """Append each recording's RefGraph, as text and for Graphviz, when its record is made."""
    original = dispatcher.synthesise

    def synthesise(recording: Any, *args: Any, **kwargs: Any) -> Any:
        found.append((to_text(recording.refs), to_dot(recording.refs)))
        return original(recording, *args, **kwargs)

    dispatcher.synthesise = synthesise  # type: ignore[assignment]
    try:
        yield
    finally:
        dispatcher.synthesise = original  # type: ignore[assignment]


def _source() -> str:
    text = (FOLDER / "followed_program.py").read_text()
    return text[text.index("def gated") :].strip()


def _graph(text: str) -> str:
    """The code of a graph without the comments and blank lines of torch's printer."""
    lines = [line for line in text.splitlines() if line.strip() and "No stacktrace" not in line]
    return "\n".join(lines)


def _function(text: str) -> str:
    """The kernel alone: the function that Python calls only converts its arguments."""
    return text[: text.index("static PyObject*")].strip()


def _triton() -> str:
    """The same computation for a GPU that need not be there."""

    def computed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate = torch.sigmoid(x * weight)
        return gate * x, gate.mean(-1)

    graph = lowered(computed, (4, 64), (64,))
    (kernel,) = [step for step in Scheduler(graph).run().steps if isinstance(step, Kernel)]
    triton_printer.adapt_plan(kernel, graph.hint)
    return str(triton_printer.print_function(kernel, graph).text)


def page(stages: dict[str, tuple[str, str]]) -> str:
    """The architecture page with fresh output.

    Raises:
        KeyError: the page marks a stage that does not exist.
    """

    def block(mark: re.Match[str]) -> str:
        language, text = stages[mark[1]]
        return f"<!-- output: {mark[1]} -->\n```{language}\n{text}\n```\n<!-- end -->"

    return _MARKED.sub(block, PAGE.read_text())


def glossary() -> str:
    """The glossary page: one row per word, in alphabetical order."""
    rows = [line.split("\t") for line in (FOLDER / "glossary.tsv").read_text().splitlines() if line]
    rows.sort(key=lambda row: row[0].lower())
    head, _, _ = GLOSSARY.read_text().partition("| word |")
    lines = ["| word | meaning | source | module |", "| --- | --- | --- | --- |"]
    lines += [f"| **{row[0]}** | {row[1]} | {row[2]} | `{row[3]}` |" for row in rows]
    return head + "\n".join(lines) + "\n"


def digest(dot: str) -> str:
    """Marks the picture with the graph that it was drawn from."""
    return hashlib.sha256(dot.encode()).hexdigest()[:16]


def picture(dot: str) -> str | None:
    """The RefGraph as SVG, or None where Graphviz is not installed."""
    program = shutil.which("dot")
    if program is None:
        return None
    command = [program, "-Tsvg"]
    drawn = subprocess.run(command, input=dot, text=True, capture_output=True, check=True).stdout
    svg = drawn[drawn.index("<svg") :]
    return f"<!-- drawn from {digest(dot)} by `make outputs` -->\n{svg}"


def main() -> None:
    """Write all generated parts.

    Raises:
        SystemExit: the versions are not those of the page.
    """
    if not is_shown_here():
        raise SystemExit(f"the page shows Python and torch {VERSIONS}: run `make outputs`")
    stages = follow()
    PAGE.write_text(page(stages))
    GLOSSARY.write_text(glossary())
    drawn = picture(stages["dot"][1])
    if drawn is None:
        print("Graphviz is not installed: docs/refgraph.svg is as it was")
    else:
        PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
