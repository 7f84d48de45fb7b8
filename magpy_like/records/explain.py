"""``explain``: one monitor run of a program, and a report of its records."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from magpy_like.records.interface import Explanation, Segment

if TYPE_CHECKING:
    from magpy_like.records.dispatcher import Dispatcher


def explain(
    dispatcher: Dispatcher,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Dispatcher | None = None,
) -> Explanation:
    """Run the program once by a new dispatcher, and report its records.

    ``known`` has run the same program before; its findings, such as what varies, are used.
    """
    if known is not None:
        _adopt_findings(dispatcher, known)
    dispatcher.call(args, kwargs)
    dispatchers = [dispatcher, *dispatcher.continuations()]
    report = Explanation()
    for point in (point for d in dispatchers for point in d.split_points):
        if point not in report.split_points:
            report.split_points.append(point)
    report.learnt = [reason for d in dispatchers for reason in d.fast_paths.disproved]
    report.generalised = dispatcher.varying.labels()
    if known is not None:
        report.cuda_graphs = known.program.launchers.reports()
    found = [(record, d.name) for d in dispatchers for record in d.records]
    for record, name in sorted(found, key=lambda entry: entry[0].number):
        report.segments.append(Segment(name, record.graph, record.ends_at))
        if record.graph is not None and record.graph not in report.graphs:
            report.graphs.append(record.graph)
        report.lifted += record.lifted
        report.guards += record.guards
        report.side_effects += record.side_effects
        report.source += f"{record.guard_source}\n{record.mock_source}"
    return report


def _adopt_findings(dispatcher: Dispatcher, known: Dispatcher) -> None:
    """Copy the findings of another dispatcher about the same program."""
    dispatcher.dynamic, dispatcher.varying = known.dynamic, copy.deepcopy(known.varying)
    dispatcher.program.misspeculations |= known.program.misspeculations
    dispatcher.program.reports_compiling = known.program.reports_compiling
    pairs = [(dispatcher, known)]
    for layout, other in list(known.program.dispatchers.items()):
        if not (other.fast_paths.speculates and other.fast_paths.merges_branches):
            pairs.append((dispatcher.following(layout), other))
    for ours, other in pairs:
        ours.fast_paths.speculates = other.fast_paths.speculates
        ours.fast_paths.merges_branches = other.fast_paths.merges_branches
