"""The compilers a corpus can be run through, each behind the same few calls."""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import torch


@dataclasses.dataclass(frozen=True)
class Split:
    """A place where a compiler left the program to Python.

    Attributes:
        detail: the compiler's message.
        where: file, line and function, if known.
        reason: the name of the message's category, if the compiler has categories.
        title: the category as a noun phrase.
    """

    detail: str
    where: str = ""
    reason: str = ""
    title: str = ""


@dataclasses.dataclass(frozen=True)
class Capture:
    """What a compiler made of a program.

    Attributes:
        whole: the program became one graph (a program without operators: none), nothing was left
            to Python.
        graphs: number of operator graphs.
        splits: why it is not whole.
    """

    whole: bool
    graphs: int
    splits: tuple[Split, ...] = ()


class Refused(Exception):
    """The compiler said, before anything ran, that it cannot take this program."""


class Compiled(Protocol):
    """A compiled module.

    Attributes:
        module: the module whose state the calls change.
    """

    module: torch.nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def hits(self) -> int:
        """How many calls so far needed no capture and no compilation."""


# Makes, each time, a module and the arguments of a call that nobody else uses.
FreshCall = Callable[[], tuple[torch.nn.Module, list[Any], dict[str, Any]]]


class Compiler(Protocol):
    """What the runner needs of a compiler.

    Attributes:
        name: what `--compilers` calls it.
    """

    name: str

    def compile(self, module: torch.nn.Module) -> Compiled:
        """Compiles; raises `Refused` when the compiler does not take the program at all."""

    def capture(self, fresh: FreshCall) -> Capture:
        """Says what becomes of a call."""

    def state(self, module: torch.nn.Module) -> Any:
        """What of a module's state the compiler promises to keep as eager does."""

    def reset(self) -> None:
        """Forgets everything compiled so far."""


class Magpy:
    """magpy_like, through its public names."""

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
        if report.learnt:  # what the program becomes from then on is what counts
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
        self._fast = magpy.compile(module, backend=backend)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fast(*args, **kwargs)

    def hits(self) -> int:
        return int(self._magpy.cache_info(self._fast).hits)


class Dynamo:
    """`torch.compile`: whole with `fullgraph=True`, else counted without."""

    name = "dynamo"

    def __init__(self, backend: str) -> None:
        import magpy_like.compiler
        from magpy_like.torch_compat.dynamo import lookup_backend, reset_dynamo

        self._forget = reset_dynamo
        self._eager = lookup_backend("eager")
        # Not by its name: a package that is on the path but not installed has registered none.
        built_in = magpy_like.compiler.dynamo_backend
        self._backend = {"eager": self._eager, "magpy": built_in}[backend]

    def compile(self, module: torch.nn.Module) -> Compiled:
        return _DynamoCompiled(module, self._backend, fullgraph=False)

    def capture(self, fresh: FreshCall) -> Capture:
        module, args, kwargs = fresh()
        try:
            fast = _DynamoCompiled(module, self._eager, fullgraph=True)
            fast(*args, **kwargs)
            return Capture(True, fast.graphs)
        except Exception as error:
            detail = summarize_error(error)
        self._forget()
        module, args, kwargs = fresh()
        fast = _DynamoCompiled(module, self._eager, fullgraph=False)
        fast(*args, **kwargs)
        return Capture(False, fast.graphs, (Split(detail),))

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

        def counting(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
            self.graphs += 1
            return backend(graph, example_inputs)

        self._fast = torch.compile(module, backend=counting, fullgraph=fullgraph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = self._frames()
        result = self._fast(*args, **kwargs)
        self._hits += self._frames() == before
        return result

    def _frames(self) -> int:
        return sum(self._counters["frames"].values())

    def hits(self) -> int:
        return self._hits


class TorchScript:
    """`torch.jit.script`."""

    name = "torchscript"

    def __init__(self, backend: str) -> None:
        pass  # TorchScript has one of its own

    def compile(self, module: torch.nn.Module) -> Compiled:
        try:
            return _Scripted(torch.jit.script(module))
        except Exception as error:
            raise Refused(summarize_error(error)) from error

    def capture(self, fresh: FreshCall) -> Capture:
        return Capture(True, 1)

    def state(self, module: torch.nn.Module) -> Any:
        # A script module has its own copies of all other attributes.
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
    """Loads a compiler; for the CPU also what it loads for its first program, by giving it one.

    Without gradients, since a process that is forked after a backward pass can do none. Not for a
    GPU: compilers ask for it, and a process that is forked after that cannot use it.
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
    """An exception as one line: its type and the first lines of its text that say something."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = " ".join([line for line in lines if line][:4])
    return f"{type(error).__name__}: {text}"[:300]


def find_raise_site(error: BaseException) -> str:
    """Where an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
