"""Whether tensors share a version counter."""

import torch

from magpy_like.torch_interop.version_counters import shares_counter


def test_views_share_a_counter_and_data_has_its_own():
    base = torch.ones(3)
    base.add_(1)
    found = [shares_counter(t, [base]) for t in (base[1:], base.detach(), base.data, base.clone())]
    assert found == [True, True, False, False]
    assert base._version == 1


def test_inference_tensors_share_none():
    with torch.inference_mode():
        base = torch.ones(3)
    assert not shares_counter(base.data, [base]) and not shares_counter(torch.ones(3), [base])
