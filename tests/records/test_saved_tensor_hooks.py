"""Compiled functions under hooks on saved tensors."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy


def block():
    # In float64: gradients of the weights before a batch norm cancel to rounding errors.
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Tanh()
    return torch.nn.Sequential(*layers).double()


def inputs():
    return torch.arange(12, dtype=torch.float64).reshape(4, 3).requires_grad_()


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_checkpointed_compiled_block_is_recomputed_in_the_backward_pass(backend, reentrant, warm):
    eager, found = block(), []
    target = copy.deepcopy(eager)
    compiled = magpy.compile(target, backend=backend)
    for module, called in ((eager, eager), (target, compiled)):
        if warm:
            called(inputs()).sum().backward()
        for _ in range(2):
            x = inputs()
            checkpoint(called, x, use_reentrant=reentrant).pow(2).sum().backward()
        found.append([x.grad, *module.buffers(), *(p.grad for p in module.parameters())])
    for actual, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(actual, expected)


def test_hooks_receive_eagers_saved_tensors():
    eager, found = block(), []
    compiled = magpy.compile(copy.deepcopy(eager), backend="magpy")
    compiled(inputs()).sum().backward()
    for called in (eager, compiled):
        shapes = []

        def pack(tensor, shapes=shapes):
            shapes.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            called(inputs()).sum().backward()
        found.append(shapes)
    assert found[1] == found[0]


def test_hooks_set_by_the_program_receive_eagers_saved_tensors():
    """The program splits at the hooks; a compiled graph between them would save other tensors."""

    def program(x, packed):
        def pack(tensor):
            packed.append(tuple(tensor.shape))
            return tensor

        y = x.exp()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 2):
            z = (y.sin() * y.cos()).sum()
        return z * 2

    fast = magpy.compile(program)
    for _ in range(3):
        seen = []
        for call in (fast, program):
            x, packed = torch.linspace(-1, 1, 4, requires_grad=True), []
            call(x, packed).backward()
            seen.append((x.grad, packed))
        torch.testing.assert_close(*(gradient for gradient, _ in seen))
        assert seen[0][1] == seen[1][1]
