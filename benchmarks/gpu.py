"""Models on one GPU, next to eager mode and torch.compile's modes: `python -m benchmarks.gpu`.

Tasks: "fp32" is inference with batch 1, "fp16" with batch 16 and the model in half precision;
"train" is a training step (forward, backward, SGD) with batch 16 under bfloat16 autocast.

Columns: milliseconds a call, medians of interleaved rounds; in brackets the sum of the times of
its GPU kernels and their number, by the profiler; seconds of the first call, with cold caches if
``--cold`` (``--warm --fill 8`` takes a fraction of the time); peak memory over that before the
model was made. Results of inference are compared with those of the first compiler.
"""

import functools
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import click
import torch
from torch import nn

import magpy_like as magpy
from benchmarks.gpu_models import MODELS
from benchmarks.paired_timing import describe_machine, format_table, geometric_mean, measure
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.cuda import clear_library_workspaces

COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "default": torch.compile,
    "reduce-overhead": lambda model: torch.compile(model, mode="reduce-overhead"),
    "max-autotune": lambda model: torch.compile(model, mode="max-autotune"),
    "magpy": magpy.compile,
    "magpy-reduce": lambda model: magpy.compile(model, mode="reduce-overhead"),
    "magpy-plain": lambda model: magpy.compile(model, options={"cuda_graphs": False}),
}
TORCHS = ("default", "reduce-overhead", "max-autotune")
BATCH = {"fp32": 1, "fp16": 16, "train": 16}
_NOT_KERNELS = {"Activity Buffer Request"}
MAX_DISTANCE = {"fp32": 1e-3, "fp16": 5e-2}
"""Largest :func:`distance` from the first compiler's results that rounding explains."""
WARM_UP = 8
"""Calls before any timing: more than a CUDA graph needs to be captured."""


def loss_of(result: Any) -> torch.Tensor:
    """A loss of any model's results."""
    leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    return sum(
        (t.float().square().mean() for t in leaves if t.requires_grad), torch.zeros(()).cuda()
    )


def prepare(name: str, task: str, compiler: str) -> Callable[[], Any]:
    """A call of a compiled model."""
    torch.manual_seed(0)
    entry = MODELS[name]
    model = entry.make().cuda()
    if task == "fp16":
        model = model.half()
    inputs = {k: v.cuda() for k, v in entry.inputs(BATCH[task]).items()}
    if task == "fp16":
        inputs = {k: v.half() if v.is_floating_point() else v for k, v in inputs.items()}
    named = "input_ids" in inputs
    args, kwargs = ((), inputs) if named else (tuple(inputs.values()), {})
    if task != "train":
        compiled = COMPILERS[compiler](model.eval())

        def infer() -> Any:
            with torch.no_grad():
                return compiled(*args, **kwargs)

        return infer
    return _training_step(model.train(), COMPILERS[compiler], args, kwargs)


def _training_step(
    model: nn.Module, compiler: Callable[[Any], Any], args: Any, kwargs: Any
) -> Callable[[], Any]:
    compiled = compiler(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(compiled(*args, **kwargs))
        loss.backward()
        optimizer.step()

    return step


@contextmanager
def cold_caches() -> Iterator[None]:
    """Empty caches on disk, for every compiler."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "MAGPY_CACHE_DIR": f"{folder}/magpy",
        }
        with mock.patch.dict(os.environ, caches):
            yield


def kernel_time(call: Callable[[], Any], calls: int = 3) -> tuple[float, int]:
    """Milliseconds that GPU kernels run in a call, and their number."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    kernels = [
        event
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.name not in _NOT_KERNELS
    ]
    total = sum(event.time_range.elapsed_us() for event in kernels)
    return total / 1e3 / calls, len(kernels) // calls


def distance(tensors: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of two calls' results, over the largest element of the tensor; NaN
    where only one has an infinity or NaN."""
    found = [0.0]
    for a, b in zip(tensors, expected, strict=True):
        same = torch.isclose(a, b, rtol=0, atol=0, equal_nan=True)
        difference = torch.where(same, 0, a.double() - b.double()).abs().max().item()
        largest = torch.where(b.isfinite(), b.double(), 0).abs().max().item()
        found.append(difference / max(largest, 1e-30))
    return next((each for each in found if not math.isfinite(each)), max(found))


def run_model(name: str, task: str, compilers: list[str], rounds: int) -> dict[str, Any]:
    """Figures of one model and task, by compiler."""
    torch.compiler.reset()
    magpy.reset()
    calls: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {}
    reference: list[torch.Tensor] = []
    for label in compilers:
        gc.collect()
        clear_library_workspaces()  # which an earlier compiler has allocated, or given back
        torch.cuda.empty_cache()
        base = torch.cuda.memory_allocated()
        try:
            call = prepare(name, task, label)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            first = time.perf_counter() - begin
            for _ in range(WARM_UP):
                call()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            results = call()
            torch.cuda.synchronize()
            peak = (torch.cuda.max_memory_allocated() - base) / 2**20
            calls[label] = call
            found[label] = {"first": first, "peak": peak}
            if task != "train":
                tensors = [
                    t.cpu() for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)
                ]
                found[label]["distance"] = distance(tensors, reference := reference or tensors)
                if not found[label]["distance"] <= MAX_DISTANCE[task]:
                    click.echo(
                        f"{name}, {task}, {label}: results differ from {compilers[0]}'s", err=True
                    )
        except Exception:
            error = traceback.format_exc().strip().splitlines()[-1]
            click.echo(f"{name}, {task}, {label}: {error}", err=True)
    timing = measure(calls, rounds=rounds, warmup=1)
    for label, call in calls.items():
        kernels, count = kernel_time(call)
        found[label] |= {"ms": timing.median(label) * 1e3, "gpu_ms": kernels, "kernels": count}
    return found


def describe(name: str, task: str, found: dict[str, Any], compilers: list[str]) -> list[str]:
    cells = [
        "{ms:.2f} ({gpu_ms:.2f}, {kernels}) {first:.1f} s {peak:.0f} M".format(**found[label])
        if label in found
        else "-"
        for label in compilers
    ]
    return [f"{name} {task}", *cells]


def fill_caches(models: list[str], tasks: list[str], compilers: str, processes: int) -> None:
    """Compile every model in a process of its own, so that later first calls find all on disk."""
    commands = [
        [sys.executable, "-m", "benchmarks.gpu", "--models", name, "--tasks", task,
         "--compilers", compilers, "--rounds", "1", "--warm"]
        for task in tasks for name in models if task != "train" or MODELS[name].trains
    ]  # fmt: skip
    with ThreadPoolExecutor(processes) as pool:
        quiet = functools.partial(subprocess.run, capture_output=True, check=False)
        for _ in pool.map(quiet, commands):
            pass


def summarise(results: dict[str, dict[str, Any]], compilers: list[str]) -> None:
    """Speed over torch.compile: of each mode, and of the best one for each model."""
    for ours in [label for label in compilers if label.startswith("magpy")]:
        for task in BATCH:
            of_task = {k: f for k, f in results.items() if k.endswith(f" {task}") and ours in f}
            for mode in [*TORCHS, "best"]:
                ratios = []
                for found in of_task.values():
                    modes = [m for m in TORCHS if m in found and mode in (m, "best")]
                    if modes:
                        ratios.append(min(found[m]["ms"] for m in modes) / found[ours]["ms"])
                if ratios:
                    print(
                        f"{ours}, {task}: {geometric_mean(ratios):.3f} of {mode} "
                        f"({len(ratios)} models, least {min(ratios):.2f})"
                    )
            firsts = [f[ours]["first"] / f["default"]["first"] for f in of_task.values()
                      if "default" in f]  # fmt: skip
            if firsts:
                ratio = geometric_mean(firsts)
                print(f"{ours}, {task}: first call {ratio:.2f} of default")


@click.command()
@click.option("--models", default=",".join(MODELS), help="Names; all by default.")
@click.option("--tasks", default="fp32,fp16,train", show_default=True)
@click.option("--compilers", default="eager,default,reduce-overhead,magpy", show_default=True)
@click.option("--rounds", default=11, show_default=True)
@click.option("--cold/--warm", default=True, show_default=True)
@click.option("--fill", default=0, help="Fills the disk caches first, by so many processes.")
@click.option("--seconds", default=1e9, help="Begins no model after so many seconds.")
@click.option("--out", type=click.Path(), default=None, help="A file for all figures, as JSON.")
def main(
    models: str,
    tasks: str,
    compilers: str,
    rounds: int,
    cold: bool,
    fill: int,
    seconds: float,
    out: str | None,
) -> None:
    """Prints one line per model and task, then the speeds over torch.compile's modes."""
    print(describe_machine(), "\n", flush=True)
    if fill:
        fill_caches(models.split(","), tasks.split(","), compilers, fill)
    wanted, begin = compilers.split(","), time.perf_counter()
    results: dict[str, dict[str, Any]] = {}
    rows = []
    for task in tasks.split(","):
        for name in models.split(","):
            if task == "train" and not MODELS[name].trains:
                continue
            if time.perf_counter() - begin > seconds:
                break
            if cold:
                with cold_caches():
                    found = run_model(name, task, wanted, rounds)
            else:
                found = run_model(name, task, wanted, rounds)
            results[f"{name} {task}"] = found
            rows.append(describe(name, task, found, wanted))
            print("  ".join(rows[-1]), flush=True)
            if out is not None:
                with open(out, "w") as file:
                    json.dump(results, file, indent=1)
    print()
    print(format_table(["model", *wanted], rows))
    print("\nms (ms of GPU kernels, their number), seconds of the first call, MiB at the peak\n")
    summarise(results, wanted)


if __name__ == "__main__":
    main()
