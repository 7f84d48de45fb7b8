"""Many seeds in worker processes, which may crash, hang or run out of memory."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = {"eager": 30.0, "magpy": 120.0}
"""Of processor time of one program, after which it counts as a hang: machines may be busy."""
NATIVELY = "none"
"""In place of a backend: programs run without this package."""
IDLE_SECONDS = 300.0
"""Of waiting for a program that uses no processor time."""
MEMORY = 3000
"""MiB of a worker, after which a new one takes its place."""
Finding = dict[str, Any]


class Worker:
    """A worker process; a new one after a crash, a hang, or too much memory."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._process: subprocess.Popen[str] | None = None

    def try_seed(self, seed: int) -> Finding:
        """The verdict on one program as a dictionary."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
        line = process.stdout.readline() if self._waits(process) else None
        if not line:
            self.stop()
            if line is None:
                return {"seed": seed, "kind": "hang", "failed": True, "detail": ""}
            kind = f"crash (exit status {process.returncode})"
            if self._backend != NATIVELY and _crashes_natively(seed):
                return {"seed": seed, "kind": "eager mode crashes", "failed": False}
            return {"seed": seed, "kind": kind, "failed": True, "detail": ""}
        found = json.loads(line)
        if found["memory"] > MEMORY:
            self.stop()
        return {"seed": seed, **found}

    def _waits(self, process: subprocess.Popen[str]) -> bool:
        """Wait for output; False if the process has used up its time."""
        used, idle = _processor_seconds(process.pid), time.monotonic()
        limit, last = used + SECONDS.get(self._backend, 120.0), used
        while not select.select([process.stdout], [], [], 1.0)[0]:
            now = _processor_seconds(process.pid)
            if now > last:
                last, idle = now, time.monotonic()
            if now > limit or time.monotonic() - idle > IDLE_SECONDS:
                return False
        return True

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.fuzz.worker", self._backend]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **threads, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    assert pipe is not None
                    pipe.close()
            self._process = None


def _crashes_natively(seed: int) -> bool:
    """True if eager mode itself ends the process: torch checks less than it should."""
    worker = Worker(NATIVELY)
    try:
        return bool(worker.try_seed(seed)["failed"])
    finally:
        worker.stop()


def _processor_seconds(process: int) -> float:
    """The processor time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sweep(
    backend: str, seeds: Sequence[int], jobs: int, *, seconds: float = float("inf")
) -> Iterator[Finding]:
    """The findings of all seeds, as they arrive; no new program begins after ``seconds``."""
    end = time.monotonic() + seconds
    idle = collections.deque(Worker(backend) for _ in range(jobs))
    workers = list(idle)

    def run(seed: int) -> Finding | None:
        if time.monotonic() > end:
            return None
        worker = idle.popleft()
        try:
            return worker.try_seed(seed)
        finally:
            idle.append(worker)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            yield from filter(None, pool.map(run, seeds))
    finally:
        for worker in workers:
            worker.stop()


class Journal:
    """Findings in a file, one a line. A change of the sources begins a new one."""

    def __init__(self, path: Path | None, backend: str) -> None:
        self._path = path
        self._header = {"backend": backend, "sources": sources_digest()}
        self.known: dict[int, Finding] = {}
        if path is None:
            return
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) == self._header:
            for line in lines[1:]:
                with contextlib.suppress(json.JSONDecodeError):  # cut off when the sweep was ended
                    found = json.loads(line)
                    self.known[found["seed"]] = found
        else:
            path.write_text(json.dumps(self._header) + "\n")

    def add(self, found: Finding) -> None:
        self.known[found["seed"]] = found
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(found) + "\n")


def sources_digest() -> str:
    """A digest of all that decides a finding."""
    digest = hashlib.sha256()
    for folder in ("magpy_like", "annotations", "tests/fuzz"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".cpp", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def summary(found: Sequence[Finding]) -> str:
    """Totals of findings, and the seeds of failures by kind."""
    totals: dict[str, float] = collections.Counter()
    kinds: dict[str, list[int]] = collections.defaultdict(list)
    for one in found:
        kinds[one["kind"]].append(one["seed"])
        for name in ("calls", "raised", "hits", "misses", "splits", "native", "seconds"):
            totals[name] += one.get(name, 0)
        totals["whole"] += not one.get("splits", 1) and not one.get("native", True)
        totals["failed"] += one["failed"]
    count = max(len(found), 1)
    lines = [
        f"{len(found)} programs, {totals['calls']:.0f} calls, {totals['raised']:.0f} raised",
        f"one graph: {totals['whole'] / count:.0%}; split: "
        f"{sum(bool(one.get('splits')) for one in found) / count:.0%}; native: "
        f"{totals['native'] / count:.0%}",
        f"hits {totals['hits']:.0f}, misses {totals['misses']:.0f}; "
        f"{totals['seconds'] / count:.2f} s of CPU a program",
        f"failed: {totals['failed']:.0f}",
    ]
    failed = {one["kind"] for one in found if one["failed"]}
    for kind, seeds in sorted(kinds.items(), key=lambda item: -len(item[1])):
        shown = " ".join(map(str, sorted(seeds)[:12])) if kind in failed else ""
        lines.append(f"  {len(seeds):6} {kind}  {shown}".rstrip())
    return "\n".join(lines)
