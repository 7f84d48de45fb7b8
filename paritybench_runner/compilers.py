"""Compilers that run a corpus: magpy_like, Dynamo and TorchScript behind one interface."""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import torch


@dataclasses.dataclass(frozen=True)
class Split:
    """A point where a compiler leaves the program to Python.

    Attributes:
        detail: the compiler's message.
        where: file, line and function, if known.
        reason: name of the message's category, if the compiler has categories.
        title: the category as a noun phrase.
    """

    detail: str
    where: str = ""
    reason: str = ""
    title: str = ""


@dataclasses.dataclass(frozen=True)
class Capture:
    """Result of capturing a program.

    Attributes:
        whole: True if the program became one graph (none, if it has no operators), with nothing
            left to Python.
        graphs: number of operator graphs.
        splits: reasons why the program is not whole.
    """

    whole: bool
    graphs: int
    splits: tuple[Split, ...] = ()


class Refused(Exception):
    """The compiler rejected the program before running any of it."""


class Compiled(Protocol):
    """A compiled module.

    Attributes:
        module: the module whose state the calls change.
    """

    module: torch.nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def hits(self) -> int:
        """Returns the number of calls so far without capture or compilation."""


# Returns a new module and new arguments (args, kwargs) each time.
FreshCall = Callable[[], tuple[torch.nn.Module, list[Any], dict[str, Any]]]


class Compiler(Protocol):
    """Interface of a compiler to the runner.

    Attributes:
        name: its name in `--compilers`.
    """

    name: str

    def compile(self, module: torch.nn.Module) -> Compiled:
        """Compiles a module.

        Raises:
            Refused: the compiler does not support the program at all.
        """

    def capture(self, fresh: FreshCall) -> Capture:
        """Captures a call and returns its graphs and splits."""

    def state(self, module: torch.nn.Module) -> Any:
        """Returns the part of a module's state that must equal eager mode's after a call."""

    def reset(self) -> None:
        """Discards everything compiled so far."""


class Magpy:
    """magpy_like, through its public API."""

    name = "magpy"

    def __init__(self, backend: str) -> None:
        import magpy_like
        import magpy_like.compiler

        self._magpy = magpy_like
        self._backend = backend

    def compile(self, module: torch.nn.Module) -> Compiled:
        return _MagpyCompiled(self._magpy, module, self._backend)

    def capture(self, fresh: FreshCall) -> Capture:
        module, args, kwargs = fresh()
        report = self._magpy.explain(module, *args, **kwargs)
        if report.learnt:  # later recordings skip the disproved fast paths: report one of them
            module, args, kwargs = fresh()
            known = self._magpy.compile(module, backend="eager")
            known(*args, **kwargs)
            _, args, kwargs = fresh()
            report = self._magpy.explain(known, *args, **kwargs)
        splits = tuple(
            Split(point.detail, point.where, point.reason.name, point.reason.title)
            for point in report.split_points
        )
        return Capture(not splits and report.graph_count <= 1, report.graph_count, splits)

    def state(self, module: torch.nn.Module) -> Any:
        return module

    def reset(self) -> None:
        self._magpy.reset()


class _MagpyCompiled:
    def __init__(self, magpy: Any, module: torch.nn.Module, backend: str) -> None:
        self.module = module
        self._magpy = magpy
        self._compiled = magpy.compile(module, backend=backend)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def hits(self) -> int:
        info = self._magpy.cache_info(self._compiled)
        return int(info.hits + info.uncompiled)


class Dynamo:
    """`torch.compile`: whole if `fullgraph=True` succeeds; otherwise graphs counted without it."""

    name = "dynamo"

    def __init__(self, backend: str) -> None:
        import magpy_like.compiler
        from magpy_like.torch_compat.dynamo import lookup_backend, reset_dynamo

        self._forget = reset_dynamo
        self._eager = lookup_backend("eager")
        # Not by name: a package that is on the path but not installed registers no backend.
        built_in = magpy_like.compiler.dynamo_backend
        self._backend = {"eager": self._eager, "magpy": built_in}[backend]

    def compile(self, module: torch.nn.Module) -> Compiled:
        return _DynamoCompiled(module, self._backend, fullgraph=False)

    def capture(self, fresh: FreshCall) -> Capture:
        module, args, kwargs = fresh()
        try:
            compiled = _DynamoCompiled(module, self._eager, fullgraph=True)
            compiled(*args, **kwargs)
            return Capture(True, compiled.graphs)
        except Exception as error:
            detail = summarize_error(error)
        self._forget()
        module, args, kwargs = fresh()
        compiled = _DynamoCompiled(module, self._eager, fullgraph=False)
        compiled(*args, **kwargs)
        return Capture(False, compiled.graphs, (Split(detail),))

    def state(self, module: torch.nn.Module) -> Any:
        return module

    def reset(self) -> None:
        self._forget()


class _DynamoCompiled:
    def __init__(
        self, module: torch.nn.Module, backend: Callable[..., Any], *, fullgraph: bool
    ) -> None:
        from magpy_like.torch_compat.dynamo import dynamo_counters

        self.module = module
        self.graphs = 0
        self._hits = 0
        self._counters = dynamo_counters

        def counting_backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
            self.graphs += 1
            return backend(graph, example_inputs)

        self._compiled = torch.compile(module, backend=counting_backend, fullgraph=fullgraph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = self._count_frames()
        result = self._compiled(*args, **kwargs)
        self._hits += self._count_frames() == before
        return result

    def _count_frames(self) -> int:
        return sum(self._counters["frames"].values())

    def hits(self) -> int:
        return self._hits


class TorchScript:
    """`torch.jit.script`."""

    name = "torchscript"

    def __init__(self, backend: str) -> None:
        pass  # TorchScript has its own backend

    def compile(self, module: torch.nn.Module) -> Compiled:
        try:
            return _Scripted(torch.jit.script(module))
        except Exception as error:
            raise Refused(summarize_error(error)) from error

    def capture(self, fresh: FreshCall) -> Capture:
        return Capture(True, 1)

    def state(self, module: torch.nn.Module) -> Any:
        # A script module copies all other attributes.
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def reset(self) -> None:
        from magpy_like.torch_patches import forget_script_classes

        forget_script_classes()


class _Scripted:
    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        return self.module(*args, **kwargs)

    def hits(self) -> int:
        return max(self._calls - 1, 0)


COMPILERS: dict[str, type[Magpy | Dynamo | TorchScript]] = {
    compiler.name: compiler for compiler in (Magpy, Dynamo, TorchScript)
}


def warm_up(name: str, backend: str, device: str) -> None:
    """Loads a compiler; on the CPU, compiles a small program to load its lazy imports as well.

    The program runs without gradients: a process forked after a backward pass can run none. For a
    GPU nothing is compiled: compilers initialise CUDA, and a process forked after that cannot use
    the GPU.
    """
    compiler = COMPILERS[name](backend)
    if device != "cpu":
        return

    def fresh() -> tuple[torch.nn.Module, list[Any], dict[str, Any]]:
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), [torch.ones(2, 3)], {}

    with torch.no_grad():
        module, args, kwargs = fresh()
        compiler.compile(module)(*args, **kwargs)
        compiler.reset()
        compiler.capture(fresh)
        compiler.reset()


def summarize_error(error: BaseException) -> str:
    """Returns an exception as one line: its type and the first non-empty lines of its message."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = " ".join([line for line in lines if line][:4])
    return f"{type(error).__name__}: {text}"[:300]


def find_raise_site(error: BaseException) -> str:
    """Returns file, line and function where an exception was raised; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
