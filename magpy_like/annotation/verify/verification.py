"""Verification of many operations, in child processes that may hang or die without harm."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.annotation.lookup import Table
from magpy_like.annotation.verify.claim_checks import Operation, Verdict, check
from magpy_like.annotation.verify.samples import Samples

SECONDS_FOR_ONE = 10


@dataclass(frozen=True, slots=True)
class Result:
    """The verdicts on one operation; ``problem`` is the reason if no claim could be tested."""

    operation: str
    source: str
    verdicts: tuple[Verdict, ...]
    samples: int
    problem: str = ""

    @property
    def refuted(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.ok is False]


@dataclass(frozen=True, slots=True)
class Job:
    """The verification of one operation, for a child process to run."""

    operation: str
    source: str
    run: Callable[[], Result]


@dataclass
class Report:
    """All results. A claim is one property that an annotation states of one operation."""

    results: list[Result] = field(default_factory=list)

    @property
    def claims(self) -> int:
        return sum(len(result.verdicts) for result in self.results)

    @property
    def verified(self) -> int:
        return sum(v.ok is True for result in self.results for v in result.verdicts)

    @property
    def refuted(self) -> list[Result]:
        return [result for result in self.results if result.refuted]

    @property
    def warnings(self) -> list[tuple[Result, Verdict]]:
        return [(r, v) for r in self.results for v in r.verdicts if v.warning and v.ok is not False]

    @property
    def untried(self) -> list[Result]:
        """Operations without a claim that could be tested."""
        return [r for r in self.results if r.verdicts and all(v.ok is None for v in r.verdicts)]


def verify(
    table: Table,
    *,
    only: Callable[[str], bool] = lambda name: True,
    isolated: bool = True,
    progress: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Test all claims about the operations in ``table`` whose names ``only`` accepts.

    ``isolated`` runs them in child processes, so that an operation may hang or end its process;
    each has SECONDS_FOR_ONE seconds.
    """
    samples = Samples()
    jobs = [
        Job(each.name, each.annotation.source, functools.partial(verify_one, each, samples))
        for each in _operations(table, samples)
        if only(each.name)
    ]
    if isolated:
        samples.prepare()
    report = Report()
    for result in run_jobs(jobs, isolated):
        report.results.append(result)
        progress(result)
    return report


def verify_one(operation: Operation, samples: Samples) -> Result:
    """All verdicts on one operation, in this process."""
    annotation = operation.annotation
    if not annotation.pure_closure:
        return Result(operation.name, annotation.source, (), 0)
    found = samples.of(
        operation.name,
        operation.function,
        operation.write,
        lambda position: annotation.input(position).value_read,
    )
    problem = "" if found else "no inputs were found that it accepts"
    verdicts: list[Verdict] = []
    try:
        verdicts.extend(check(operation, found))
    except Exception as error:  # an input or output that cannot be read
        problem = f"its inputs or outputs cannot be compared: {error!r}"
        verdicts.append(Verdict("pure_closure", None))
    return Result(operation.name, annotation.source, tuple(verdicts), len(found), problem)


def _operations(table: Table, samples: Samples) -> Iterator[Operation]:
    names = set()
    for function, annotation, write in table.entries():
        name = annotation.operation
        if (name, write) not in names:  # a property and its getter are one operation
            names.add((name, write))
            yield Operation(name, function, annotation, write, name in samples.unspecified)
    for kind, annotation in table.instance_types().items():
        for text in samples.instances.get(f"{kind.__module__}.{kind.__qualname__}", ()):
            instance = eval(text, samples.scope)
            yield Operation(f"{annotation.operation}: {text}", instance, annotation, False)


def run_jobs(jobs: list[Job], isolated: bool = True) -> Iterator[Result]:
    """The results of all jobs in order, by default in child processes.

    A child runs jobs until one kills it or takes longer than SECONDS_FOR_ONE; that job's result
    says so, and another child continues after it.
    """
    if not isolated:
        yield from _here(jobs)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    try:
        start = 0
        while start < len(jobs):
            for result in _in_one_child(jobs[start:]):
                start += 1
                yield result
    finally:
        torch.set_num_threads(threads)


def _here(jobs: Iterable[Job]) -> Iterator[Result]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for job in jobs:
            yield job.run()


def _in_one_child(jobs: list[Job]) -> Iterator[Result]:
    """Results until the jobs are through, or the child dies or hangs at one of them."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, jobs), daemon=True)
    child.start()
    theirs.close()
    done = 0
    problem = "it ended its process"
    try:
        while done < len(jobs):
            if not ours.poll(SECONDS_FOR_ONE):
                problem = f"it took more than {SECONDS_FOR_ONE} s"
                break
            result = ours.recv()
            done += 1
            yield result
    except EOFError:
        pass
    finally:
        child.kill()
        child.join()
        ours.close()
    if done < len(jobs):
        lost = jobs[done]
        yield Result(lost.operation, lost.source, (Verdict("pure_closure", None),), 0, problem)


def _child(pipe: Connection, jobs: list[Job]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    sys.setrecursionlimit(2000)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            for result in _here(jobs):
                pipe.send(result)
        finally:
            pipe.close()


def shipped_table() -> Table:
    """The annotations of this package, with all modules imported that they mention."""
    for name in _modules():
        __import__(name)
    table = Table()
    table.load_directory(annotations_dir())
    return table


def _modules() -> list[str]:
    return [
        "_json", "_string", "bisect", "cmath", "contextvars", "dataclasses", "datetime", "heapq",
        "importlib.metadata", "inspect", "json", "logging", "numpy", "pickle", "struct",
        "textwrap", "threading", "torch.utils.checkpoint", "unicodedata",
    ]  # fmt: skip


def table_of_files(paths: Iterable[Path]) -> Table:
    """The annotations of this package, overridden by those of some files."""
    table = shipped_table()
    for path in paths:
        table.load(path)
    return table
