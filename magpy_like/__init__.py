"""magpy_like: makes PyTorch programs fast by monitoring one native run of them."""

# First: refuses interpreters whose frames the monitor does not know.
import magpy_like.bytecode.supported_versions  # noqa: F401
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
    CompileError,
    DynamicDimensionError,
    FullGraphError,
    MagpyError,
)
from magpy_like.records.interface import CacheInfo
from magpy_like.split_reasons import SplitReason

__all__ = [
    "AnnotationError",
    "CacheInfo",
    "CompileError",
    "DynamicDimensionError",
    "FullGraphError",
    "MagpyError",
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
