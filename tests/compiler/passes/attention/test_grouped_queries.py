"""One position's attention reads keys and values of a group of heads once, not repeated."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.compiler import passes

HEADS, GROUP, LENGTH, WIDTH = 2, 4, 9, 16
PROJECTION = torch.linspace(-1, 1, 3 * HEADS * GROUP * WIDTH).view(3, -1)


def subscript(x):
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, GROUP, n, d).reshape(b, h * GROUP, n, d)


def full_subscript(x):
    b, h, n, d = x.shape
    return x[:, :, None, :, :].expand(b, h, GROUP, n, d).reshape(b, h * GROUP, n, d)


def unsqueezed(x):
    return x.unsqueeze(2).expand(-1, -1, GROUP, -1, -1).flatten(1, 2)


def interleaved(x):
    return x.repeat_interleave(GROUP, dim=1)


def tiled(x):
    return x.repeat(1, GROUP, 1, 1)  # heads of a group are not next to each other


def other_dimension(x):
    b, h, n, d = x.shape
    return x[:, None].expand(b, GROUP, h, n, d).reshape(b, h * GROUP, n, d)


REPETITIONS = [subscript, full_subscript, unsqueezed, interleaved]
MASKS = {
    "none": None,
    "bool": torch.arange(LENGTH)[None, None, None] < LENGTH - 2,
    "added": torch.linspace(-1, 1, 2 * LENGTH).view(2, 1, 1, LENGTH),
}


def inputs(queries=1, batch=2):
    shapes = (HEADS * GROUP, queries), (HEADS, LENGTH), (HEADS, LENGTH)
    return [torch.randn(batch, *shape, WIDTH) for shape in shapes]


def attention(repeat, **options):
    def function(q, k, v, mask=None):
        result = F.scaled_dot_product_attention(q, repeat(k), repeat(v), mask, **options)
        return F.linear(result.transpose(1, 2).reshape(len(q), q.shape[2], -1), PROJECTION.to(q))

    return function


def copies(function, *args):
    """The number of copied heads that the rewritten graph's attention reads."""
    found = []

    def backend(gm, examples):
        found.append(passes.run_captured(gm, examples))
        (call,) = gm.graph.find_nodes(
            op="call_function", target=torch.nn.functional.scaled_dot_product_attention
        )
        found.append(sum(node.op != "placeholder" for node in call.args[1:3]))
        return gm.forward

    magpy.compile(function, backend=backend)(*args)
    return found[1]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("repeat", REPETITIONS)
def test_result_is_that_of_repeated_heads(repeat, mask, device):
    function = attention(repeat, scale=0.3)
    fast = magpy.compile(function)
    mask = None if MASKS[mask] is None else MASKS[mask].to(device)
    assert copies(function, *(x.to(device) for x in inputs()), mask) == 0
    for _ in range(3):
        args = [x.to(device) for x in inputs()]
        found, expected = fast(*args, mask), function(*args, mask)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_keys_may_be_the_values():
    def function(q, k):
        both = interleaved(k)
        return F.scaled_dot_product_attention(q, both, both) @ torch.ones(WIDTH, 2)

    fast = magpy.compile(function)
    for _ in range(2):
        q, k, _ = inputs()
        torch.testing.assert_close(fast(q, k), function(q, k))


def returned(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, interleaved(k), interleaved(v), mask)


def returned_in_part(q, k, v, mask=None):
    result = F.scaled_dot_product_attention(q, interleaved(k), interleaved(v), mask)
    return result @ torch.ones(WIDTH, 2), result.transpose(1, 2)


LEFT_ALONE = {
    "returned": (returned, inputs(), None),
    "returned in part": (returned_in_part, inputs(), None),
    "several queries": (attention(subscript), inputs(queries=3), None),
    "tiled heads": (attention(tiled), inputs(), None),
    "another dimension": (attention(other_dimension), inputs(), None),
    "causal": (attention(subscript, is_causal=True), inputs(), None),
    "mask for each head": (attention(subscript), inputs(), torch.zeros(2, 8, 1, LENGTH)),
    "gradients": (attention(subscript), [x.requires_grad_() for x in inputs()], None),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_attention_is_left_alone(name):
    function, args, mask = LEFT_ALONE[name]
    assert copies(function, *args, mask) == 2
    fast = magpy.compile(function)
    for _ in range(2):
        torch.testing.assert_close(fast(*args, mask), function(*args, mask))


def test_copy_made_before_a_write_is_kept():
    def function(q, k, v):
        keys, values = subscript(k), subscript(v)
        k.mul_(2)
        return F.scaled_dot_product_attention(q, keys, values) @ torch.ones(WIDTH, 2)

    fast = magpy.compile(function)
    for _ in range(2):
        q, k, v = inputs()
        torch.testing.assert_close(fast(q, k.clone(), v), function(q, k.clone(), v))
