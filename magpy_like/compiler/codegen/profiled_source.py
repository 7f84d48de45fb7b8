"""A launcher's source with regions for a profiler: its kernels, and the program's own regions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from magpy_like.graph_operators.node_origins import ProfilerRegion
from magpy_like.graph_operators.region_spans import spans


@dataclass(frozen=True)
class ProfiledStep:
    """One step of a launcher.

    ``first``, ``last``: its lines, ``last`` excluded
    ``call``: the begin of the line that calls a kernel; "" for operators of ATen, which name
    themselves
    ``title``: the kernel's name in a profile
    ``regions``: the program's regions around the operators that it computes
    """

    first: int
    last: int
    call: str
    title: str
    regions: Collection[ProfilerRegion]


def profiled_source(
    source: str, steps: Sequence[ProfiledStep], regions: Collection[ProfilerRegion]
) -> str:
    """The source of a launcher with a ``with`` statement for each region.

    It uses the names ``kernel_region(title)`` and ``program_region(name, args)``. Those of the
    ``regions`` that enclose no step come first, empty.
    """
    lines = source.splitlines()
    found = spans([step.regions for step in steps])
    spanning = {span.region for span in found}
    end = steps[0].first if steps else len(lines) - 1
    text = lines[:end]
    text += [f"    {_head(region)} pass" for region in regions if region not in spanning]
    for index, step in enumerate(steps):
        around = [span for span in found if span.first <= index <= span.last]
        for depth, span in enumerate(around):
            if span.first == index:
                text.append("    " * (depth + 1) + _head(span.region))
        indentation = "    " * len(around)
        for line in lines[step.first : step.last]:
            if step.call and line.lstrip().startswith(step.call):
                text.append(f"{indentation}    with kernel_region({step.title!r}):")
                line = f"    {line}"
            text.append(indentation + line)
        end = step.last
    return "\n".join([*text, *lines[end:], ""])


def _head(region: ProfilerRegion) -> str:
    return f"with program_region({region.name!r}, {region.args!r}):"
