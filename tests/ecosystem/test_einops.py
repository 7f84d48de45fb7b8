"""einops in compiled modules: functions, layers, ``einsum``, ``pack``."""

import pytest
import torch
from torch import nn

from tests.ecosystem.side_by_side import assert_as_eager

einops = pytest.importorskip("einops")
pytestmark = pytest.mark.full


class PatchAttention(nn.Module):
    def __init__(self):
        super().__init__()
        from einops.layers.torch import EinMix, Rearrange

        self.patches = Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2)
        self.mix = EinMix("b n i -> b n o", weight_shape="i o", bias_shape="o", i=12, o=8)
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        tokens = self.mix(self.patches(x))
        q, k, v = einops.rearrange(self.qkv(tokens), "b n (k h d) -> k b h n d", k=3, h=2)
        weights = einops.einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        heads = einops.einsum(weights, v, "b h i j, b h j d -> b h i d")
        joined = einops.rearrange(heads, "b h n d -> b n (h d)")
        token = einops.repeat(joined.mean(1), "b d -> b 1 d")
        packed, shapes = einops.pack([token, joined], "b * d")
        first, rest = einops.unpack(packed, shapes, "b * d")
        return einops.reduce(rest, "b n d -> b d", "max") + einops.rearrange(first, "b 1 d -> b d")


def test_a_module_of_einops_operations_trains_as_in_eager_mode():
    def program(wrap):
        model = PatchAttention()
        step, found = wrap(model), []
        for _ in range(3):
            result = step(torch.randn(2, 3, 4, 4))
            result.square().sum().backward()
            found.append(result.detach())
        return found, [parameter.grad for parameter in model.parameters()]

    assert_as_eager(program, hits=2, rtol=1e-4, atol=1e-5)


def test_sizes_may_vary():
    """einops keeps its plans in caches by shape."""

    def program(wrap):
        model = wrap(PatchAttention())
        with torch.no_grad():
            return [model(torch.randn(batch, 3, 4, 4)) for batch in (2, 3, 4, 5, 6)]

    assert_as_eager(program, hits=2, rtol=1e-4, atol=1e-5)
