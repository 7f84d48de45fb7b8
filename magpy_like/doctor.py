"""``magpy doctor``: what this installation needs, whether it is there, and how to mend it."""

from __future__ import annotations

import builtins
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from magpy_like.bytecode import supported_versions
from magpy_like.disk_cache import cpp_compiler, maintenance, user_settings
from magpy_like.errors import MagpyError
from magpy_like.native import helper_status
from magpy_like.torch_compat import supported_torch

PACKAGE = "magpy-like"


class Finding(NamedTuple):
    """The result of one check: ``text`` states what is there, ``fault`` what is wrong and how to
    mend it; empty if nothing is."""

    subject: str
    text: str
    fault: str = ""


def examine() -> Iterator[Finding]:
    """The findings of all checks, in order; the self-test comes last and needs the others."""
    for subject, check in CHECKS.items():
        try:
            text, fault = check()
        except Exception as error:  # a check that fails is a finding
            text, fault = "not known", f"{type(error).__name__}: {error}"
        yield Finding(subject, text, fault)


def _versions() -> tuple[str, str]:
    installed = importlib.metadata.version(PACKAGE)
    return f"magpy_like {installed}, torch {torch.__version__}", supported_torch.difference()


def _python() -> tuple[str, str]:
    text = f"{platform.python_implementation()} {platform.python_version()}"
    return text, supported_versions.obstacle() or ""


def _compiler() -> tuple[str, str]:
    try:
        compiler = cpp_compiler.cxx()
    except cpp_compiler.NoCompilerError as error:
        return "none", str(error)
    return f"{' '.join(compiler.command)} ({compiler.version.splitlines()[0]})", compiler.missing


def _helper() -> tuple[str, str]:
    at_hand = helper_status.is_loaded()
    obstacle = helper_status.obstacle()
    if obstacle is not None:
        return "programs run natively", obstacle
    return "found" if at_hand else "compiled now", ""


def _cache() -> tuple[str, str]:
    held = maintenance.info()
    size = sum(held.size.values()) / 2**20
    state = "read-only" if user_settings.is_read_only() else f"{size:.1f} MiB"
    return f"{held.path} ({state})", ""


def _gpu() -> tuple[str, str]:
    if not torch.cuda.is_available():
        return "none that torch can use", ""
    text = torch.cuda.get_device_name()
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return text, "Triton is not installed, so no kernel is compiled for it: pip install triton"
    return f"{text}, Triton {triton}", ""


_PROGRAM = """
def program(x, scale):
    seen.append(len(seen))
    return (x.sin() * scale).sum()
"""
# As text: code of this package is not monitored.


def _self_test() -> tuple[str, str]:
    """Compile a function with an effect and gradients, and compare three calls with eager mode."""
    from magpy_like.api import cache_info, compile

    names: dict[str, Any] = {"seen": []}
    exec(builtins.compile(_PROGRAM, "<magpy doctor>", "exec"), names)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compiled = compile(names["program"])
    for _ in range(3):
        x = torch.linspace(-1, 1, 5, device=device, requires_grad=True)
        compiled(x, 2.0).backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    if names["seen"] != [0, 1, 2]:
        raise MagpyError(f"an effect was repeated wrongly: {names['seen']}")
    if not cache_info(compiled).hits:
        return "right results, no hit", "the program ran natively: see the faults above"
    return "right results, by compiled code", ""


CHECKS: dict[str, Callable[[], tuple[str, str]]] = {
    "versions": _versions,
    "Python": _python,
    "C++ compiler": _compiler,
    "native helper": _helper,
    "cache": _cache,
    "GPU": _gpu,
    "self-test": _self_test,
}
"""Subject -> its check, which returns (what is there, what is wrong)."""
