"""Process of one corpus file, which reports each step before and after it."""

import contextlib
import dataclasses
import faulthandler
import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from paritybench_runner import corpus
from paritybench_runner.compilers import COMPILERS, summarize_error
from paritybench_runner.evaluate import evaluate_compiler, evaluate_eager

EAGER = "eager"


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings for the run of one file.

    Attributes:
        path: the file.
        compilers: names of compilers, in order.
        backend: backend of the compilers.
        device: "cpu" or "cuda".
        train: compare gradients as well.
        pattern: `--filter`.
    """

    path: str
    compilers: tuple[str, ...]
    backend: str = "eager"
    device: str = "cpu"
    train: bool = False
    pattern: str | None = None


@dataclasses.dataclass(frozen=True)
class Event:
    """Begin or end of a step of a file.

    Attributes:
        kind: "begin", "done", "end" (of the file) or "restart" (the rest needs a new process).
        index: index of the test; -1 during the import of the file.
        step: "import", "eager" or the name of a compiler.
        result: result of a step that is done.
    """

    kind: str
    index: int = -1
    step: str = "import"
    result: Any = None


def run_file(
    job: Job, known: dict[tuple[int, str], dict[str, Any]] | None = None
) -> Iterator[Event]:
    """Runs a file's tests and yields an `Event` before and after every step.

    Args:
        job: settings of the file.
        known: results of earlier attempts by test and step; these steps do not run again.
    """
    known = known or {}
    yield Event("begin")
    try:
        cases = corpus.load_cases(Path(job.path))
    except Exception as error:
        yield Event("done", result={"error": summarize_error(error)})
        yield Event("end")
        return
    name = Path(job.path).name
    cases = [case for case in cases if corpus.matches_filter(job.pattern, name, case.module)]
    yield Event("done", result={"tests": [(case.index, case.module) for case in cases]})
    compilers = {name: COMPILERS[name](job.backend) for name in job.compilers}
    for case in cases:
        steps = [step for step in (EAGER, *compilers) if (case.index, step) not in known]
        eager = known.get((case.index, EAGER))
        if not steps or (eager is not None and eager["class"] != "ok"):
            continue
        # In a second attempt eager mode runs again for the program; its result is known.
        yield Event("begin", case.index, EAGER)
        program, result = evaluate_eager(case, job.device, job.train)
        lost = _has_lost_gpu()
        if lost:
            program, result = None, {"class": "fails", "error": result.get("error", "lost the GPU")}
        if eager is None or program is None:
            eager = result
            yield Event("done", case.index, EAGER, result)
        for step in steps:
            if step != EAGER and program is not None and not lost:
                yield Event("begin", case.index, step)
                result = evaluate_compiler(program, eager, compilers[step])
                yield Event("done", case.index, step, result)
                lost = _has_lost_gpu()
        if lost:
            yield Event("restart")
            return
    yield Event("end")


def _has_lost_gpu() -> bool:
    """True if a failed kernel invalidated this process's CUDA context: no further kernel runs."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
    return False


def main(
    job: Job,
    known: dict[tuple[int, str], dict[str, Any]],
    channel: Connection,
    folder: str,
    memory: int | None,
) -> None:
    """Entry point of the process: sends the events of `run_file` through `channel`.

    Args:
        job, known: as for `run_file`.
        channel: receives the events.
        folder: temporary working directory; the file `stderr` in it receives the program's stderr.
        memory: limit in bytes, or None: of the address space on the CPU, of device memory on a GPU.
    """
    os.setsid()  # a process group of its own, so that the file's processes end together
    threading.Thread(target=_end_with_runner, daemon=True).start()
    os.chdir(folder)
    _redirect_streams(os.path.join(folder, "stderr"))
    faulthandler.enable()
    if memory is not None:
        _limit_memory(memory, job.device)
    sys.path.insert(0, os.path.dirname(job.path))
    warnings.simplefilter("ignore")
    exit_code = 0
    try:
        for event in run_file(job, known):
            channel.send(event)
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # a program may raise more than an `Exception`
        sys.stderr.write(summarize_error(error))
        sys.stderr.flush()
        exit_code = 1
    channel.close()
    # Threads and exit handlers of imported libraries must not delay the exit.
    os._exit(exit_code)


def _limit_memory(memory: int, device: str) -> None:
    if device == "cuda":
        # No limit of the address space: CUDA reserves far more than it uses. The supervisor limits
        # private memory.
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(memory / total, 1.0))
    else:
        # Libraries loaded earlier occupy addresses: with CUDA's, two gigabytes more.
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        taken = pages * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, hard))


def _end_with_runner() -> None:
    """Ends the file's processes if the runner was killed."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        multiprocessing.connection.wait([runner.sentinel])
        os.killpg(0, signal.SIGKILL)


def _redirect_streams(stderr: str) -> None:
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        null_in = stack.enter_context(open(os.devnull))
        null_out = stack.enter_context(open(os.devnull, "w"))
        errors = stack.enter_context(open(stderr, "w"))
        for stream, number in ((null_in, 0), (null_out, 1), (errors, 2)):
            os.dup2(stream.fileno(), number)
