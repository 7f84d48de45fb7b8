"""CPU time of kernel launches on one GPU: `python -m benchmarks.launches`.

"chain" is a program of 100 small kernels: each reduces the result before it, so that none fuse. Its
row has microseconds of CPU time per kernel, with the allocation of the kernel's result. "launch" is
one small kernel called by itself. CUDA graphs are off. The GPU's queue never fills: the CPU waits
for the GPU before each timed call, not in it.

Columns: kernels launched in C++, the same through Triton ("python"), torch.compile's default mode,
eager mode.
"""

import contextlib
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import describe_machine, format_table
from magpy_like.compiler.runtime import native_launch
from magpy_like.compiler.runtime.triton_launch import TritonSource, load_many

KERNELS = 100
CALLS = 100  # of the small kernel in a sample
GOAL = 2.0
"""Microseconds of a launch in C++."""

SMALL = TritonSource(
    stages=(("NAME", "1"),),
    text="""@triton.jit
def NAME(p0, p1):
    at = tl.program_id(0).to(INDEX) * 64 + tl.arange(0, 64)
    tl.store(p1 + at, tl.load(p0 + at) + 1.0)
    return
""",
    pointers=(torch.float32, torch.float32),
    workspace=(), sizes=(), numbers=(), wide="False", num_warps=1, asserts=False,
)  # fmt: skip

Candidates = dict[str, Callable[[], Any]]


def chain(x: torch.Tensor, tables: list[torch.Tensor]) -> torch.Tensor:
    """Each sum needs the whole result before it, and has another size."""
    for table in tables:
        x = (x.unsqueeze(1) * table).sum(0)
    return x


def chain_inputs() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Tables of growing sizes, which keep the numbers about one."""
    tables = [torch.rand(32 + k, 33 + k, device="cuda") / (16 + k / 2) for k in range(KERNELS)]
    return torch.ones(32, device="cuda"), tables


def launched_by_python() -> contextlib.AbstractContextManager[Any]:
    """Kernels that are loaded here are launched through Triton."""
    return mock.patch.object(native_launch, "is_possible", lambda: False)


def compile_chains() -> Candidates:
    """The chain, compiled by each compiler and called until it has its final form."""
    args = chain_inputs()
    expected = chain(*args)

    def prepare(compiler: Callable[[Any], Any]) -> Callable[[], Any]:
        call = functools.partial(compiler(chain), *args)
        for _ in range(3):
            torch.testing.assert_close(call(), expected, rtol=1e-3, atol=1e-3)
        return call

    ours = functools.partial(magpy.compile, options={"cuda_graphs": False})
    candidates = {"c++": prepare(ours)}
    with launched_by_python():
        candidates["python"] = prepare(ours)
    return candidates | {"inductor": prepare(torch.compile), "eager": prepare(lambda f: f)}


def make_launches() -> Candidates:
    """Calls of one small kernel."""
    device = torch.device("cuda", torch.cuda.current_device())
    x, y = torch.ones(64, device=device), torch.empty(64, device=device)

    def repeat(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(CALLS):
                call()

        return run

    (native,) = load_many([(SMALL, device, [])])
    with launched_by_python():
        (through_triton,) = load_many([(SMALL, device, [])])
    for kernel in (native, through_triton):
        y.zero_()
        kernel(x, y)
        torch.testing.assert_close(y, x + 1)
    return {
        "c++": repeat(lambda: native(x, y)),
        "python": repeat(lambda: through_triton(x, y)),
        "eager": repeat(lambda: torch.add(x, 1, out=y)),
    }


def measure_cpu_time(candidates: Candidates, launches: int, rounds: int) -> dict[str, float]:
    """Median microseconds per launch until a call returns, which may be before the GPU is done."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - start) * 1e6 / launches)
    torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in samples.items()}


@click.command()
@click.option("--rounds", default=101, show_default=True)
@torch.no_grad()
def main(rounds: int) -> None:
    """Prints microseconds of CPU time per launch."""
    print(describe_machine(), "\n")
    if not native_launch.is_possible():
        click.echo("launches in C++ are not possible here: both columns show Triton's", err=True)
    columns = ["c++", "python", "inductor", "eager"]
    rows = []
    for name, make, launches in (
        ("chain", compile_chains, KERNELS),
        ("launch", make_launches, CALLS),
    ):
        times = measure_cpu_time(make(), launches, rounds)
        rows.append([name, *(f"{times[c]:.2f}" if c in times else "-" for c in columns)])
    print(f"Microseconds of CPU time per kernel, goal {GOAL:.1f} of a launch in C++\n")
    print(format_table(["program", *columns], rows))


if __name__ == "__main__":
    main()
