"""The generated launcher: the arguments with which it calls kernels."""

import torch

from magpy_like.compiler.codegen.capture_obstacles import find_obstacles
from magpy_like.compiler.codegen.launcher import COMMON, Launcher, define
from magpy_like.compiler.scheduling.memory_planning import plan_memory
from magpy_like.compiler.scheduling.scheduler import Scheduler
from tests.compiler.codegen.triton.fake_gpu import lowered


def test_kernels_of_a_gpu_receive_tensors():
    graph = lowered(lambda x: (x + 1).sum(), (64, 64))
    steps = plan_memory(graph, Scheduler(graph).run())
    launcher = Launcher(graph, steps, find_obstacles(graph, steps))
    source = launcher.print()
    received = []

    def on_cpu(size, stride, *, dtype, device):
        assert device.type == "cuda"
        return torch.empty_strided(size, stride, dtype=dtype)

    kernels = {step.work.name: lambda *args: received.append(args) for step in steps if step.work}
    x = torch.ones(64, 64)
    (result,) = define(
        source, {**COMMON, **launcher.namespace, **kernels, "empty_on": on_cpu, "window": alias}
    )([x])
    assert received and received[0][0] is x and received[-1][-1] is result
    assert all(isinstance(a, torch.Tensor) for args in received for a in args)


def alias(tensor, size, stride, offset):
    return tensor
