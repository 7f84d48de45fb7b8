"""A stand-in for CUDA graphs on a machine without a GPU: it records operators on CPU tensors.

A capture leaves memory as it was, and a replay computes the recorded operators anew into the same
memory, without counting writes: as CUDA does. The stand-in has no memory pool and no concurrency.
"""

import contextlib
import importlib
import itertools
import weakref

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from magpy_like.compile_modes import CudaGraphs
from magpy_like.compiler.autograd.aot import interpret
from magpy_like.compiler.autograd.saved_values import saved_tensor_indices
from magpy_like.compiler.runtime.cuda_graphs import (
    capture_pool,
    capture_site,
    captured_graph,
    graphed_launcher,
    held_graphs,
    streams_of_loans,
)
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts
from magpy_like.compiler.runtime.cuda_graphs.graphed_launcher import GraphedLauncher


def tensors_of(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def uncounted():
    """Operators that run within count no writes."""
    counting = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ExcludeDispatchKeyGuard(counting)


class StandInGraph(TorchDispatchMode):
    """In place of ``torch.cuda.CUDAGraph``."""

    fails = ""
    """An error that ends the next capture."""
    capturing = 0

    def __init__(self):
        super().__init__()
        self._steps = []
        self._overwritten = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        StandInGraph.capturing += 1
        self.__enter__()

    def capture_end(self):
        if not StandInGraph.capturing:
            raise RuntimeError("there is no capture")
        StandInGraph.capturing -= 1
        self.__exit__(None, None, None)
        for tensor, contents in reversed(self._overwritten):
            _write(tensor, contents)
        error, type(self).fails = self.fails, ""
        if error:
            raise RuntimeError(error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError("operation not permitted when stream is capturing")
        writes = func._schema.is_mutable
        if writes:
            self._overwritten += [(t, t.detach().clone()) for t in tensors_of([args, kwargs])]
        with uncounted():  # the write has been counted before
            results = func(*args, **kwargs)
        memory = {t.untyped_storage()._cdata for t in tensors_of([args, kwargs])}
        made = tensors_of([results])
        if writes or not all(t.untyped_storage()._cdata in memory for t in made):
            self._steps.append((func, args, kwargs, None if writes else made))
        return results

    def replay(self):
        with torch.no_grad(), uncounted():
            for func, args, kwargs, made in self._steps:
                results = func(*args, **kwargs)
                if made is not None:
                    for old, new in zip(made, tensors_of([results]), strict=True):
                        _write(old, new)


def _write(tensor, contents):
    """Overwrite a tensor's memory. Nothing counts the write."""
    with torch.no_grad():
        torch.as_strided(tensor.data, tensor.size(), tensor.stride()).copy_(contents)


class StandInMemory:
    """In place of ``torch.cuda.MemPool``: knows which are not deleted."""

    ids: set[int] = set()
    _numbers = itertools.count()

    def __init__(self):
        self.id = next(self._numbers)
        self.ids.add(self.id)
        weakref.finalize(self, self.ids.discard, self.id)


class StandInEvent:
    """In place of ``torch.cuda.Event``: the GPU takes ``gpu_ms`` for each call, and has finished if
    ``finished``."""

    gpu_ms, finished = 0.0, True

    def __init__(self, enable_timing=False):
        pass

    def record(self):
        pass

    def query(self):
        return self.finished

    def elapsed_time(self, end):
        return self.gpu_ms


class OnCpu:
    """In place of the module ``torch``: tensors are created on the CPU."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device):
        return torch.zeros(*size)


class Device:
    """The state of the stand-in's GPU."""

    def __init__(self):
        self.current, self.stream, self.memory = 0, 0, 1 << 40
        self.captured_by_program = False
        self.replays = []
        """The CUDA graphs that were replayed, in order."""

    @contextlib.contextmanager
    def switched_to(self, gpu):
        before, self.current = self.current, gpu
        yield
        self.current = before


def install(monkeypatch):
    """Replace CUDA by the stand-in; returns its state."""
    device = Device()
    graph, event = type("Graph", (StandInGraph,), {}), type("Event", (StandInEvent,), {})
    for name, value in {
        "CUDAGraph": graph,
        "Event": event,
        "Stream": lambda gpu: None,
        "stream": contextlib.nullcontext,
        "MemPool": StandInMemory,
        "is_current_stream_capturing": lambda: device.captured_by_program,
        "memory_reserved": lambda: 0,
        "device": device.switched_to,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(graphed_launcher, "current_device", lambda: device.current)
    monkeypatch.setattr(graphed_launcher, "current_raw_stream", lambda gpu: device.stream)
    for module in (captured_graph, capture_site):
        monkeypatch.setattr(module, "is_on_gpu", lambda a: isinstance(a, torch.Tensor))
    monkeypatch.setattr(streams_of_loans, "watch", lambda: None)
    monkeypatch.setattr(held_graphs, "_sites", {})
    monkeypatch.setattr(held_graphs, "_total_memory", lambda gpu: device.memory)
    monkeypatch.setattr(capture_pool, "torch", OnCpu())
    monkeypatch.setattr(capture_pool, "_pools", {})
    monkeypatch.setattr(capture_pool, "end_allocate_to_pool", lambda gpu, pool: None)
    monkeypatch.setattr(capture_pool, "release_pool", lambda gpu, pool: None)
    monkeypatch.setattr(capture_pool, "clear_library_workspaces", lambda: None)
    device.graph, device.event = graph, event
    replay = captured_graph.CapturedGraph.replay

    def counted(captured, args):
        device.replays.append(captured)
        return replay(captured, args)

    monkeypatch.setattr(captured_graph.CapturedGraph, "replay", counted)
    return device


def launcher(function, *, policy=CudaGraphs.ALWAYS, constants=(), written=(), **facts):
    """The launcher of a function of tensors that returns a tuple, for the stand-in's GPU."""

    def call(args):
        passed = [*args]
        args.clear()
        with torch.no_grad():
            return function(*passed)

    known = {"gpu": 0, "obstacle": None, "lendable": (), "symbolic": False, **facts}
    storages = {constant.untyped_storage()._cdata for constant in constants}
    return GraphedLauncher(call, GraphFacts(**known), policy, storages, written)


def compile_operator_by_operator(monkeypatch):
    """Let the compiler make launchers that call operators one by one, and replay them."""

    def compile_graph(gm, kind, trace, graphs):
        output = gm.graph.output_node()
        lendable = {"forward": sorted(saved_tensor_indices(output)), "inference": ()}
        results = range(len(output.args[0]))
        facts = GraphFacts(0, None, tuple(lendable.get(kind, results)), False)
        call = interpret(gm)
        if graphs is CudaGraphs.NEVER:
            call.gpu = 0
            return call
        return GraphedLauncher(call, facts, graphs, ())

    pipeline = importlib.import_module("magpy_like.compiler.compile_fx")
    monkeypatch.setattr(pipeline, "_compile", compile_graph)
    monkeypatch.setattr(pipeline.captured_graph_cache, "key", lambda *args: None)
