"""Imported once by the process that the processes of all files are forked from.

Importing PyTorch and the libraries that nearly every program imports takes longer
than most files take to run.
"""

import contextlib
import gc
import importlib
import warnings

import torch

from paritybench_runner import evaluate, shims  # noqa: F401 - for every file's process

_LIBRARIES = (
    "matplotlib",
    "numpy",
    "pandas",
    "scipy.sparse",
    "scipy.stats",
    "sklearn.metrics",
    "torch.utils.tensorboard",
    "torchvision.datasets",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    shims.install()
    for _name in _LIBRARIES:
        with contextlib.suppress(Exception):  # a file that needs it will say so
            importlib.import_module(_name)
torch.set_num_threads(1)
# What is loaded stays: collections in the files' processes need not look at it.
gc.freeze()
