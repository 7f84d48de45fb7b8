"""Tensors over lent memory, and the addresses of arguments."""

import gc
import threading

import pytest
import torch

from magpy_like.native import Lender, is_lent, same_addresses


def test_lent_tensors_show_the_memory_in_the_layout_of_the_given_ones():
    base = torch.arange(12.0)
    given = [base[:6].view(2, 3).t(), base[7:]]
    lent = Lender(given).lend()
    for a, b in zip(lent, given, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
        assert a.data_ptr() == b.data_ptr() and a._version == 0
    lent[0].zero_()
    assert not base[:6].any()
    assert lent[0].untyped_storage()._cdata == lent[1].untyped_storage()._cdata


def test_a_loan_ends_with_the_last_tensor_over_its_storage():
    lender = Lender([torch.ones(3), torch.ones(4)])
    first, second = lender.lend()
    assert lender.open == 2
    view = first[1:]
    del first, second
    gc.collect()
    assert lender.open == 1
    thread = threading.Thread(target=lambda kept: None, args=(view,))
    del view
    thread.start()
    thread.join()
    del thread
    assert lender.open == 0


def test_a_resize_ends_the_loan():
    lender = Lender([torch.ones(3)])
    (lent,) = lender.lend()
    lent.resize_(100)
    assert lender.open == 0 and not is_lent(lent)


def test_memory_outlives_its_lender():
    lender = Lender([torch.full((1000,), 7.0)])
    (lent,) = lender.lend()
    assert is_lent(lent) and not is_lent(torch.ones(1))
    del lender
    gc.collect()
    torch.zeros(1000)
    assert (lent == 7).all()


def test_addresses_are_those_of_the_first_elements():
    base = torch.ones(8)
    args = [base, base[2:], 5, torch.ones(0)]
    addresses = [base.data_ptr(), base.data_ptr() + 8, None, None]
    assert same_addresses(args, addresses)
    assert not same_addresses([base, base[1:], 5, args[3]], addresses)
    assert not same_addresses([base, 3, 5, args[3]], addresses)
    assert not same_addresses(args[:3], addresses)
    with pytest.raises(TypeError):
        same_addresses(tuple(args), addresses)
    with pytest.raises(TypeError):
        Lender([1])
