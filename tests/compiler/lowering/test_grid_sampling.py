"""Grid sampling of volumes equals eager at any position."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import aten_fallbacks, same, same_gradients, seeded

pytestmark = pytest.mark.cpu

NAN, INF = float("nan"), float("inf")
POSITIONS = [
    (NAN, 0.0), (0.0, NAN), (INF, 0.0), (-INF, 0.0), (0.0, INF), (1e30, 0.0), (-1e30, 0.1),
    (3e9, 0.0), (1.0, 1.0), (-1.0, -1.0), (1.3, 0.2), (0.24, -0.9), (-3.3, 2.6), (0.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_volume_sampled_at_any_position_equals_eager(mode):
    plane = torch.cat([torch.tensor(POSITIONS), seeded(16, 2)]).view(1, 6, 5, 2).repeat(2, 1, 1, 1)
    grid = torch.cat([plane, plane[..., :1].flip(1)], -1).view(2, 2, 3, 5, 3)
    volume, thin = seeded(2, 2, 3, 5, 4), seeded(2, 1, 1, 5, 1)
    cases = list(itertools.product(("zeros", "border", "reflection"), (False, True)))

    def sampled(*tensors):
        volume, thin, grid = tensors
        pairs = [(volume, grid), (thin, grid), (volume.double(), grid.double())]
        return [F.grid_sample(x, g, mode, *case) for x, g in pairs for case in cases]

    same(sampled, volume, thin, grid)
    assert not aten_fallbacks(lambda x, g: F.grid_sample(x, g, mode, *cases[0]), volume, grid)


def test_gradients_of_a_sampled_volume_equal_eager():
    volume, grid = seeded(2, 2, 3, 5, 4), seeded(2, 2, 3, 5, 3)
    same_gradients(lambda x, g: F.grid_sample(x * 2, g, align_corners=False), volume, grid)
