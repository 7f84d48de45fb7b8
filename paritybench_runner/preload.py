"""Imports and warm-up of the process from which the files' processes are forked.

Importing PyTorch and the libraries of nearly every program takes longer than most files take to
run, and so do the lazy imports of a compiler's first compilation. PARITYBENCH_WARM lists the
compilers to warm up, their backend and the device: `magpy,dynamo:eager:cpu`.
"""

import contextlib
import gc
import importlib
import os
import warnings

from paritybench_runner import evaluate, shims  # noqa: F401 - used by every file's process
from paritybench_runner.compilers import warm_up

_LIBRARIES = (
    "matplotlib",
    "numpy",
    "pandas",
    "scipy.sparse",
    "scipy.stats",
    "sklearn.metrics",
    "torch._dynamo",  # `Module.zero_grad` and others import it at their first call
    "torch.utils.tensorboard",
    "torchvision.datasets",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    shims.install()
    for _name in _LIBRARIES:
        with contextlib.suppress(Exception):  # a file that needs it fails in its own process
            importlib.import_module(_name)
    _compilers, _backend, _device = os.environ.get("PARITYBENCH_WARM", "::").split(":")
    for _name in filter(None, _compilers.split(",")):
        with contextlib.suppress(Exception):  # each file fails in its own process
            warm_up(_name, _backend, _device)
# Everything loaded stays: garbage collections in the files' processes skip it.
gc.freeze()
