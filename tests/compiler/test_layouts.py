"""How results lie in memory: as eager's, also where torch's decompositions tell otherwise."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import same, seeded

PERMUTED = [
    ((4, 3), (1, 0)),
    ((3, 4, 5), (0, 2, 1)),
    ((2, 3, 4, 5), (0, 3, 1, 2)),
    ((2, 3, 4, 5), (0, 2, 1, 3)),
    ((2, 3, 4, 5), (1, 0, 2, 3)),
    ((2, 3, 4, 5, 6), (0, 4, 1, 2, 3)),
    ((2, 3, 4, 5, 6), (0, 2, 1, 3, 4)),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("shape", "order"), PERMUTED)
def test_batch_norm_of_permuted_dimensions(shape, order, training):
    width = shape[order[1]]

    def program(x, mean, var):
        return F.batch_norm(x.permute(order), mean, var, training=training).permute(order)

    same(program, seeded(*shape), torch.zeros(width), torch.ones(width), rtol=1e-4, atol=1e-5)


def test_batch_norm_is_laid_out_alike_where_sizes_vary():
    def program(x):
        return F.batch_norm(x.transpose(1, 2), None, None, training=True).transpose(1, 2)

    same(program, seeded(3, 4, 5), dynamic=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.roll((1, 1), (2, 3)),
        lambda x: x.roll(2, 1),
        lambda x: x.roll(2),
        lambda x: x.roll((1, 5), (1, 2)),
        lambda x: x.transpose(0, 2).roll(1, 1),
        lambda x: F.channel_shuffle(x, 2),
        pytest.param(
            lambda x: F.channel_shuffle(x.transpose(2, 3), 2),
            marks=pytest.mark.cpu,  # eager raises on a GPU
        ),
    ],
)
def test_moved_elements_keep_channels_last(program, layout):
    same(program, seeded(3, 4, 5, 6).to(memory_format=layout))


@pytest.mark.parametrize("operator", [torch.logical_and, torch.logical_or, torch.logical_xor])
@pytest.mark.parametrize("shape", [(33,), (3, 1), (3, 33), ()])
def test_truths_of_a_broadcast_and_a_transposed_argument(operator, shape):
    one, other = seeded(*shape), seeded(33, 3).t()
    same(operator, one.round(), other.round())
    same(operator, other.round(), one.round().int())


@pytest.mark.parametrize(
    "program",
    [
        lambda x, i, j: x[i.t()],
        lambda x, i, j: x[:, i.t(), j.t()],
        lambda x, i, j: x[i.t(), :, j.t()],
        lambda x, i, j: x[:, i[:, 0], j.t()],
        lambda x, i, j: x.transpose(0, 2)[:, i.t()],
        lambda x, i, j: x[(*torch.stack((i, j, i), -1).permute(2, 1, 0),)].transpose(0, 1),
    ],
)
def test_looked_up_elements_lie_as_their_transposed_indices(program):
    i = torch.arange(6).reshape(2, 3) % 3
    same(program, seeded(3, 4, 5), i, i.flip(0))
