"""Imported once by the process that the processes of all files are forked from.

Importing PyTorch and the libraries that nearly every program imports takes longer than most files
take to run, and so does what a compiler loads for its first program. PARITYBENCH_WARM says
which, for which backend and device: `magpy,dynamo:eager:cpu`.
"""

import contextlib
import gc
import importlib
import os
import warnings

from paritybench_runner import evaluate, shims  # noqa: F401 - for every file's process
from paritybench_runner.compilers import warm_up

_LIBRARIES = (
    "matplotlib",
    "numpy",
    "pandas",
    "scipy.sparse",
    "scipy.stats",
    "sklearn.metrics",
    "torch._dynamo",  # `Module.zero_grad` and others import it when they are first called
    "torch.utils.tensorboard",
    "torchvision.datasets",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    shims.install()
    for _name in _LIBRARIES:
        with contextlib.suppress(Exception):  # a file that needs it will say so
            importlib.import_module(_name)
    _compilers, _backend, _device = os.environ.get("PARITYBENCH_WARM", "::").split(":")
    for _name in filter(None, _compilers.split(",")):
        with contextlib.suppress(Exception):  # each file will say so
            warm_up(_name, _backend, _device)
# What is loaded stays: collections in the files' processes need not look at it.
gc.freeze()
