"""One process that tries programs: a seed a line on standard input, a verdict a line on output."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import warnings
from dataclasses import asdict

import torch

import magpy_like as magpy
from tests.fuzz.generation import generate
from tests.fuzz.sweep import NATIVELY
from tests.fuzz.trials import check, run_natively

MEMORY = 16
"""GiB of address space, so that a program that grows without end fails alone."""


def main(backend: str) -> None:
    """Answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program prints natively is no answer
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY << 30, MEMORY << 30))
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        begin = time.process_time()
        program = generate(int(line))
        verdict = run_natively(program) if backend == NATIVELY else check(program, backend)
        magpy.reset()
        gc.collect()
        # The remaining half a million objects belong to modules and caches. Each later collection
        # would go through them.
        gc.freeze()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        found = {
            **asdict(verdict),
            "seconds": round(time.process_time() - begin, 3),
            "memory": memory,
        }
        found["failed"] = verdict.failed
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
