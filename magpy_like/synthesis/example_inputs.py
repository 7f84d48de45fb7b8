"""Example inputs of an operator graph for the backend: tensors, or fake tensors and symbols."""

from __future__ import annotations

from typing import Any

import torch

from magpy_like.monitor.operator_graph.tensor_writes import tensor_form
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Expression, is_computable_at_entry
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin
from magpy_like.monitor.torch_state.outdated_bases import without_outdated_base
from magpy_like.native.instance_checks import is_instance


def example_inputs(rec: Recording, changes_inputs: bool) -> list[Any]:
    """The tensors of the recorded run, or fake tensors and symbolic numbers if a size may vary.

    The latter belong to one ``ShapeEnv``, like those that Dynamo passes to its backends.
    """
    sources = [source for _, source in rec.operators.nodes.inputs]
    tensors = {source: _at_entry(rec, source) for source in sources if is_instance(source, int)}
    known = {**rec.lifted.identities.values, **rec.operators.nodes.example_values}
    numbers = [s for s in sources if is_instance(s, Expression) and not _is_tensor(known.get(s))]
    twin = rec.sizes.twin
    if twin is not None and changes_inputs and _share_memory(list(tensors.values())):
        for fake in twin.inputs.values():  # overlaps in memory would depend on the sizes
            twin.specialize(fake)
    varies = (
        numbers
        or rec.operators.numbers.reads_data
        or (twin and any(map(twin.has_dynamic_layout, tensors)))
    )
    if not varies:
        return [tensors[s] if is_instance(s, int) else known[s] for s in sources]
    if twin is None:
        twin = SymbolicTwin(rec.operators.numbers.add_size)
    twin.begin_examples()
    examples = []
    for source in sources:
        if is_instance(source, int):
            examples.append(twin.example_input(source, tensors[source]))
            continue
        if _is_tensor(known.get(source)):
            examples.append(twin.static_fake(known[source]))
            continue
        number = twin.numbers.get(source)
        if number is None and is_computable_at_entry(source):
            number = twin.add_number(source, known[source], size=False)
        elif number is None:
            number = twin.add_unbacked_number(source, known[source])
        examples.append(number)
    return examples


def _at_entry(rec: Recording, source: int) -> Any:
    """An input at the entry of the region: a tensor with the metadata that the guard checks.

    In-place operators may have changed sizes, strides or ``requires_grad`` since, and new data
    also dtype and device. Inputs that are no tensors are objects that a custom autograd function
    reads.
    """
    node = rec.refs.get_node_by_id(source)
    tensor, form, before = node.variable, rec.reads.layouts.get(source), node.first.value
    if not is_instance(tensor, torch.Tensor):
        return tensor
    requires_grad, same = tensor.requires_grad, tensor
    replaced = rec.writes.data_replaced.get(source)
    if replaced is not None and replaced != tensor_form(tensor):
        dtype, device, _ = replaced
        layout = form if form is not None else (tensor.shape, tensor.stride())
        same = torch.empty_strided(*layout, dtype=dtype, device=device, requires_grad=requires_grad)
    elif form is not None and (tuple(tensor.shape), tuple(tensor.stride())) != form:
        plain = tensor.detach()
        try:
            same = plain.as_strided(*form)
        except RuntimeError:  # its storage offset has changed, too
            same = plain.as_strided(*form, 0)
        same = same.detach().requires_grad_(requires_grad)
    if before is not None and before.why(same) == "requires_grad":
        same = same.detach().requires_grad_(not requires_grad)
    return without_outdated_base(same)


def _is_tensor(value: Any) -> bool:
    return is_instance(value, torch.Tensor)


def _share_memory(tensors: list[torch.Tensor]) -> bool:
    try:
        seen = [t.untyped_storage()._cdata for t in tensors]
    except (NotImplementedError, RuntimeError):  # a tensor without storage
        return True
    return len(set(seen)) < len(seen)
