"""Shims for importing programs of 2017 to 2023 with current libraries.

`install()` changes its process permanently: only processes that run corpus files call it. Each shim
has a general reason: a library moved or removed a name, or a library is not installed. None is
specific to one file.
"""

import builtins
import collections
import collections.abc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from paritybench_runner import paritybench_helpers

SEED = 1337

# Libraries that programs import for data and logging, rarely for their models. If one is not
# installed, all its attributes are mocks.
MOCKED_LIBRARIES = ("tensorflow", "torchtext", "torchaudio")

# Names that moved or disappeared: module -> name -> present name, or a function that creates it.
MOVED_NAMES: dict[str, dict[str, str | Callable[[], Any]]] = {
    "inspect": {"getargspec": "inspect.getfullargspec"},
    "numpy": {
        "bool8": "builtins.bool",
        "complex": "builtins.complex",
        "float": "builtins.float",
        "int": "builtins.int",
        "object": "builtins.object",
        "str": "builtins.str",
        "long": "builtins.int",
        "float_": "numpy.float64",
        "Inf": "numpy.inf",
        "NaN": "numpy.nan",
        "product": "numpy.prod",
    },
    "scipy.signal": {
        name: f"scipy.signal.windows.{name}"
        for name in ("tukey", "gaussian", "kaiser", "hann", "hamming", "blackman", "bartlett")
    },
    "matplotlib.cm": {"get_cmap": "matplotlib.pyplot.get_cmap"},
    "torch._utils": {"_accumulate": "itertools.accumulate"},
}

# Models of early torchvision versions had a table of download addresses by model name.
URL_TABLES = tuple(
    f"torchvision.models.{name}"
    for name in ("alexnet", "densenet", "googlenet", "inception", "mnasnet", "mobilenet")
) + tuple(
    f"torchvision.models.{name}"
    for name in ("mobilenetv2", "mobilenetv3", "resnet", "shufflenetv2", "squeezenet", "vgg")
)

# Schemas of torchvision's native operators. Its wheel is built for CUDA; where its library does not
# load, `import torchvision` fails unless the operators are declared. They cannot run.
TORCHVISION_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width) -> (Tensor, Tensor)",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width) -> (Tensor, Tensor)",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "_cuda_version() -> int",
)

_KEEP_ALIVE: list[Any] = []  # the destructor of torch.library.Library removes its definitions


def install() -> None:
    """Installs all shims; then corpus files can be imported."""
    sys.modules["_paritybench_helpers"] = paritybench_helpers.make_module()
    pin_seed()
    for name in vars(collections.abc):
        if name[0].isupper() and not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
    sys.modules.setdefault("torch._six", _make_torch_six())
    sys.meta_path.append(_MockedLibraries())
    _declare_torchvision_operators()
    for module, names in MOVED_NAMES.items():
        _add_moved_names(module, names)
    for module in URL_TABLES:
        _add_moved_names(module, {"model_urls": lambda: collections.defaultdict(str)})


def pin_seed() -> None:
    """Makes `torch.manual_seed` ignore its argument and set a fixed seed, as ParityBench does.

    Programs that seed with the time become deterministic.
    """
    generator = torch.default_generator

    def manual_seed(seed: int = SEED) -> torch.Generator:
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(SEED)
        return generator.manual_seed(SEED)

    torch.manual_seed = manual_seed


def _make_torch_six() -> types.ModuleType:
    six = types.ModuleType("torch._six")
    six.__dict__.update(
        PY2=False,
        PY3=True,
        PY37=True,
        string_classes=(str, bytes),
        int_classes=int,
        container_abcs=collections.abc,
        FileNotFoundError=FileNotFoundError,
        StringIO=importlib.import_module("io").StringIO,
        builtins=builtins,
        imap=map,
        zip_longest=itertools.zip_longest,
        inf=float("inf"),
        nan=float("nan"),
        with_metaclass=lambda meta, *bases: meta("base", bases or (object,), {}),
    )
    return six


def _add_moved_names(module: str, names: dict[str, str | Callable[[], Any]]) -> None:
    try:
        target = importlib.import_module(module)
    except Exception:  # not installed, or not importable here
        return
    for name, source in names.items():
        # `in vars`, not `hasattr`: NumPy's module `__getattr__` raises for removed names.
        if name in vars(target):
            continue
        if callable(source):
            setattr(target, name, source())
        else:
            home, _, attribute = source.rpartition(".")
            setattr(target, name, getattr(importlib.import_module(home), attribute))


class _MockedLibraries(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds those of `MOCKED_LIBRARIES`, and their submodules, that are not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in MOCKED_LIBRARIES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _MockModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _MockModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        # The import system and `inspect` read these and would mistake a mock for a real value.
        if name.startswith("__"):
            raise AttributeError(name)
        value = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


def _declare_torchvision_operators() -> None:
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision.extension")
    except Exception:
        # The failed import leaves a partial package in sys.modules; it is imported again below.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for schema in TORCHVISION_OPERATORS:
            library.define(schema)
        _KEEP_ALIVE.append(library)
        _KEEP_ALIVE.append(importlib.import_module("torchvision"))
