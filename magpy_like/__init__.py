"""magpy_like: compiles PyTorch programs by monitoring one native run of each.

- ``api``: the public functions; ``compiled_module``, ``compiled_class``: the results of compiling a
  module or another callable object, and a class; ``wrapper_classes``: the classes of these
- ``arguments``: what the arguments of the public functions may be
- ``integrations``: callbacks for frameworks, imported by programs that use them
- ``cli``, ``command_group``, ``doctor``: the command, and its check of the installation
- ``config``, ``errors``, ``logs``: limits, exceptions, log topics
- ``annotation``: operation annotations (MagPy, section 5.2)
- ``bytecode``, ``native``: facts about code objects, and the C++ helper
- ``refgraph``: the reference graph and Algorithm 1 (MagPy, section 4)
- ``monitor``: one native run, recorded; ``active_run``: the run of this thread;
  ``interruption``: signals that arrive meanwhile
- ``control_flow``: branches and loops as operators
- ``splitting``: split points and continuations; ``split_points``, ``split_reasons``: their data
- ``synthesis``: from a recording to guard and mock
- ``records``: the records of a compiled function, and dispatch
- ``graph_operators``: operators of captured graphs that are not torch's
- ``compiler``, ``disk_cache``: from captured graphs to kernels, and kernels on disk
- ``torch_compat``, ``torch_patches``, ``torch_interop``: private names of torch, changes made to
  it, and its tracing state
"""

from magpy_like.annotation import annotate, load_annotations
from magpy_like.api import (
    cache_info,
    compile,
    disable,
    explain,
    is_compiling,
    mark_dynamic,
    reset,
)
from magpy_like.errors import (
    AnnotationError,
    ArgumentError,
    CompileError,
    DimensionError,
    DynamicDimensionError,
    FullGraphError,
    MagpyError,
    MagpyWarning,
    NativeHelperError,
    RecompileError,
)
from magpy_like.records.interface import CacheInfo
from magpy_like.split_reasons import SplitReason

__all__ = [
    "AnnotationError",
    "ArgumentError",
    "CacheInfo",
    "CompileError",
    "DimensionError",
    "DynamicDimensionError",
    "FullGraphError",
    "MagpyError",
    "MagpyWarning",
    "NativeHelperError",
    "RecompileError",
    "SplitReason",
    "annotate",
    "cache_info",
    "compile",
    "disable",
    "explain",
    "is_compiling",
    "load_annotations",
    "mark_dynamic",
    "reset",
]
