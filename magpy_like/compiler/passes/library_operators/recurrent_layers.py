"""Recurrent layers as one operator each, computed by eager's libraries.

Except for an LSTM that oneDNN supports, AOTAutograd would trace torch's decompositions, which
unroll a layer over its time steps and leave cuDNN unused. (As of torch 2.13 that of an LSTM also
returns states with one dimension too many.) The backward pass runs the layer once
more, with dropout on a CPU from the same state of the random generator; cuDNN has its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.graph_operators.operator_registration import (
    autograd_enabled,
    define_backward,
    define_operator,
)

_LAYERS: dict[str, Callable[..., Any]] = {
    layer.__name__: layer for layer in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
}


def keep_recurrent_layers(gm: GraphModule) -> bool:
    """Replace a captured graph's recurrent layers by one operator each; True if there are any."""
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _REPLACEMENTS]
    for node in found:
        node.target = _REPLACEMENTS[node.target]
    if found:
        gm.recompile()
    return bool(found)


def _keep_whole(layer: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the signature of ``torch.lstm`` etc. that calls the operator."""

    def call(*args: Any) -> Any:
        input, second, third, *rest = args
        # (input, states, parameters, ...), or (data, batch sizes, states, parameters, ...)
        packed = isinstance(third, Tensor) or (layer is torch.lstm and isinstance(second, Tensor))
        sizes, states, parameters = (
            (second, third, rest.pop(0)) if packed else (None, second, third)
        )
        biases, layers, dropout, train, bidirectional, *batch_first = rest
        drops = dropout if train and layers > 1 else 0.0
        if layer is torch.lstm and not (packed or drops) and _is_onednn_layer(input, states):
            return layer(*args)
        if drops and input.device.type != "cpu":
            raise Unsupported("a recurrent layer", "it has dropout between its layers on a GPU")
        swapped = bool(batch_first and batch_first[0])
        output, *states = _RECURRENT(
            layer.__name__, input.transpose(0, 1) if swapped else input, sizes,
            [states] if isinstance(states, Tensor) else list(states), list(parameters),
            biases, layers, drops, train, bidirectional,
        )  # fmt: skip
        return (output.transpose(0, 1) if swapped else output, *states[:-1])

    return call


def _is_onednn_layer(input: Tensor, states: Sequence[Tensor]) -> bool:
    """True if torch decomposes an LSTM into one call of oneDNN per layer and direction."""
    return (
        torch.backends.mkldnn.is_available()
        and all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (input, *states))
        and not input.requires_grad
        and states[0].shape[-1] == states[1].shape[-1]
    )


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    layer: _keep_whole(layer) for layer in _LAYERS.values()
}


def _recurrent(*args: Any) -> list[Tensor]:
    """The output, time steps first, the final states, and the random generator's state before."""
    *_, dropout, _train, _bidirectional = args
    before = torch.get_rng_state() if dropout else torch.empty(0, dtype=torch.uint8)
    return [*(result.contiguous() for result in _run_layer(*args)), before]


def _fake_results(
    layer: str, input: Tensor, batch_sizes: Tensor | None, states: list[Tensor],
    parameters: list[Tensor], *numbers: Any,
) -> list[Tensor]:  # fmt: skip
    _biases, _layers, dropout, _train, bidirectional = numbers
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    random = len(torch.get_rng_state()) if dropout else 0
    return [
        input.new_empty([*input.shape[:-1], features]),
        *(input.new_empty(state.shape) for state in states),
        torch.empty(random, dtype=torch.uint8, device="cpu"),
    ]


def _run_layer(
    layer: str, input: Tensor, batch_sizes: Tensor | None, states: Sequence[Tensor],
    parameters: Sequence[Tensor], *numbers: Any,
) -> list[Tensor]:  # fmt: skip
    hidden = tuple(states) if layer == "lstm" else states[0]
    if batch_sizes is not None:
        return list(_LAYERS[layer](input, batch_sizes, hidden, list(parameters), *numbers))
    return list(_LAYERS[layer](input, hidden, list(parameters), *numbers, False))


def _recurrent_backward(
    grads: list[Tensor], random: Tensor, layer: str, input: Tensor, batch_sizes: Tensor | None,
    states: list[Tensor], parameters: list[Tensor], *numbers: Any,
) -> list[Tensor]:  # fmt: skip
    """The gradients of the input, the states and the parameters."""
    last = 1 + len(states)
    drops = random.numel() > 0
    with torch.random.fork_rng(devices=[], enabled=drops), autograd_enabled():
        if drops:
            torch.set_rng_state(random)
        leaves = [t.detach().requires_grad_() for t in (input, *states, *parameters)]
        results = _run_layer(layer, leaves[0], batch_sizes, leaves[1:last], leaves[last:], *numbers)
        found = torch.autograd.grad(results, leaves, grads)
    return [grad.contiguous() for grad in found]


def _fake_gradients(
    grads: list[Tensor], random: Tensor, layer: str, input: Tensor, batch_sizes: Tensor | None,
    states: list[Tensor], parameters: list[Tensor], *numbers: Any,
) -> list[Tensor]:  # fmt: skip
    return [t.new_empty(t.shape) for t in (input, *states, *parameters)]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    layer, input, batch_sizes, states, parameters, *numbers = inputs
    ctx.settings = (layer, len(states), numbers)
    ctx.save_for_backward(output[-1], input, batch_sizes, *states, *parameters)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    layer, count, numbers = ctx.settings
    random, input, batch_sizes, *tensors = ctx.saved_tensors
    found = _RECURRENT_BACKWARD(
        grads[:-1], random, layer, input, batch_sizes, tensors[:count], tensors[count:], *numbers
    )
    return None, found[0], None, found[1 : 1 + count], found[1 + count :], *[None] * len(numbers)


_ARGUMENTS = (
    "str layer, Tensor input, Tensor? batch_sizes, Tensor[] states, Tensor[] parameters, "
    "bool biases, int layers, float dropout, bool train, bool bidirectional"
)
_RECURRENT = define_operator(
    f"recurrent({_ARGUMENTS}) -> Tensor[]",
    _recurrent,
    _fake_results,
    tags=(torch.Tag.nondeterministic_seeded,),
)
_RECURRENT_BACKWARD = define_operator(
    f"recurrent_backward(Tensor[] grads, Tensor random, {_ARGUMENTS}) -> Tensor[]",
    _recurrent_backward,
    _fake_gradients,
)
define_backward(_RECURRENT, _backward, _save_for_backward)
