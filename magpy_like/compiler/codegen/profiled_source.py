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
    """The source of a launcher with calls that begin and end each region.

    It uses the names ``kernel_region(title)``, a context manager, ``begin_region(name, args)`` and
    ``end_region(region)``: Python nests few ``with`` statements, and regions may be many. Those of
    the ``regions`` that enclose no step come first, empty.
    """
    lines = source.splitlines()
    found = spans([step.regions for step in steps])
    spanning = {span.region for span in found}
    end = steps[0].first if steps else len(lines) - 1
    text = lines[:end]
    text += [f"    end_region({_begin(region)})" for region in regions if region not in spanning]
    for index, step in enumerate(steps):
        for k, span in enumerate(found):
            if span.first == index:
                text.append(f"    region{k} = {_begin(span.region)}")
        for line in lines[step.first : step.last]:
            if step.call and line.lstrip().startswith(step.call):
                text.append(f"    with kernel_region({step.title!r}):")
                line = f"    {line}"
            text.append(line)
        for k, span in reversed([*enumerate(found)]):
            if span.last == index:
                text.append(f"    end_region(region{k})")
        end = step.last
    return "\n".join([*text, *lines[end:], ""])


def _begin(region: ProfilerRegion) -> str:
    return f"begin_region({region.name!r}, {region.args!r})"
