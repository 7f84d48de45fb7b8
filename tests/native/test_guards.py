"""Native checks of guards: fixed objects, metadata of tensors, observers of operators."""

import sys
import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from magpy_like.native import ABSENT, PartialCall, Watch, is_unusual, memory_of


class Instance:
    pass


class Other:
    pass


def watched(value):
    """A watch of one tensor that has found it unchanged several times."""
    watch = Watch()
    watch.tensor(value)
    assert watch() and watch()
    return watch


# --- tensors --------------------------------------------------------------------------------------


def set_data(other):
    def change(tensor):
        tensor.data = other

    return change


def assign_class(tensor):
    tensor.__class__ = torch.nn.Parameter


TENSOR_CHANGES = {
    "requires_grad": lambda t: t.requires_grad_(),
    "shape": set_data(torch.ones(3, 2)),
    "number of dimensions": set_data(torch.ones(2, 3, 1)),
    "strides": set_data(torch.ones(3, 2).t()),
    "dtype": set_data(torch.ones(2, 3, dtype=torch.float64)),
    "storage set": lambda t: t.set_(torch.ones(6).untyped_storage(), 0, (3, 2), (2, 1)),
    "resized": lambda t: t.resize_(2, 4),
    "transposed": lambda t: t.t_(),
    "conjugate": set_data(torch.ones(2, 3, dtype=torch.complex64).conj()),
    "swapped": lambda t: torch.utils.swap_tensors(t, torch.ones(3, 2)),
    "class": assign_class,
}


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_each_change_of_metadata_is_noticed(change):
    tensor = torch.ones(2, 3)
    watch = watched(tensor)
    TENSOR_CHANGES[change](tensor)
    assert not watch()
    assert "changed" in watch.why()
    assert not watch()


def test_metadata_that_is_restored_is_accepted_again():
    tensor = torch.ones(2, 3)
    watch = watched(tensor)
    before = tensor.data
    tensor.data = torch.ones(7)
    assert not watch()
    tensor.data = before
    assert watch() and watch()
    tensor.requires_grad_()
    assert not watch()
    tensor.requires_grad_(False)
    assert watch() and watch()


def test_same_metadata_in_other_memory_is_accepted():
    tensor = torch.ones(2, 3)
    watch = watched(tensor)
    tensor.data = torch.zeros(4, 3)[2:]
    assert watch() and watch()
    torch.utils.swap_tensors(tensor, torch.zeros(2, 3))
    assert watch() and watch()
    tensor.data = torch.zeros(2, 4)
    assert not watch()


@pytest.mark.parametrize("rank", [0, 4, 5, 6, 9])
def test_sizes_of_any_rank_are_watched(rank):
    tensor = torch.ones((1,) * rank)
    watch = watched(tensor)
    for dim in range(rank):
        size = [1] * rank
        size[dim] = 2
        tensor.data = torch.ones(size)
        assert not watch()
        tensor.data = torch.ones((1,) * rank)
        assert watch()
    tensor.data = torch.ones((1,) * (rank + 1))
    assert not watch()


def test_sparse_tensor_is_watched():
    sparse = torch.eye(3).to_sparse()
    watch = watched(sparse)
    sparse.sparse_resize_((4, 4), 2, 0)
    assert not watch()


@pytest.mark.parametrize("form", ["to_sparse_csr", "to_sparse_csc", "to_mkldnn"])
def test_tensor_without_strides_is_watched(form):
    assert watched(getattr(torch.eye(3), form)())()


# --- dictionaries, instances, functions -----------------------------------------------------------


def test_class_and_dictionary_of_an_instance_are_watched():
    one = Instance()
    watch = Watch()
    watch.type(one)
    assert watch.instance_dict(one)
    assert watch() and watch()
    one.attribute = 1
    assert watch(), "only its identity matters here"
    one.__class__ = Other
    assert not watch()
    assert watch.why() == "the class of a Instance changed"
    one.__class__ = Instance
    assert watch()
    before, one.__dict__ = one.__dict__, {}
    assert not watch()
    assert watch.why() == "the __dict__ of a Instance changed"
    one.__dict__ = before
    assert watch()


STORES = {
    "by its attributes": lambda one, name, value: setattr(one, name, value),
    "in its dictionary": lambda one, name, value: one.__dict__.__setitem__(name, value),
}


@pytest.mark.parametrize("has_own_values", [False, True])
@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_attributes_of_an_instance_are_watched(store, has_own_values):
    """Python 3.13 stores attributes without a trace in their dictionary's version."""
    one, watch = Instance(), Watch()
    one.first = one.second = 1000
    if has_own_values:
        one.__dict__[1] = one.__dict__.pop("second")  # a key that no attribute has
    attributes = one.__dict__
    watch.location(attributes, "first", 1000, True)
    watch.location(attributes, "third", ABSENT, False)
    assert watch() and watch()
    store(one, "first", int("1000"))
    assert watch() and watch(), "an equal number"
    store(one, "first", 1001)
    assert not watch()
    assert watch.why() == "entry 'first' changed: it is 1001"
    store(one, "first", 1000)
    assert watch()
    store(one, "fourth", 1)
    assert watch()
    store(one, "third", 1)
    assert not watch()
    del one.third
    assert watch()
    Instance().third = 5  # of another instance
    assert watch()
    del one.first
    assert not watch()
    store(one, "first", 1000)
    assert watch()
    del one  # its dictionary lives on
    attributes["first"] = 7
    assert not watch()


def test_each_of_many_instances_is_watched():
    """Their values are compared together; one that dies, or has a new dictionary, leaves them."""
    instances, watch = [Instance() for _ in range(20)], Watch()

    def add(one, i):
        one.first = i
        watch.location(one.__dict__, "first", i, True)
        watch.location(one.__dict__, "third", ABSENT, False)

    for i, one in enumerate(instances[:10]):
        add(one, i)
    assert watch() and watch()
    for i, one in enumerate(instances[10:], 10):
        add(one, i)
    assert watch() and watch(), "locations that were added after a check"
    for i, one in enumerate(instances):
        one.first = -1
        assert not watch()
        one.first = i
        assert watch()
        one.third = 1
        assert not watch()
        del one.third
        setattr(one, f"new{i}", 1)
        assert watch()
    kept = instances[3].__dict__
    instances[3] = None
    assert watch() and watch()
    kept["first"] = -1
    assert not watch()
    kept["first"] = 3
    former = instances[5].__dict__
    instances[5].__dict__ = {"first": -1}
    assert watch(), "the dictionary that is watched is as it was"
    former["third"] = 1
    assert not watch()
    del former["third"]
    assert watch() and watch()
    instances[7].first = -1
    assert not watch()


def test_order_of_an_instance_s_attributes_is_watched():
    one, watch = Instance(), Watch()
    one.first, one.second = 1, 2
    watch.size(one.__dict__, ["first", "second"])
    assert watch() and watch()
    del one.first
    one.first = 1
    assert not watch()
    assert watch.why() == "the keys of a dictionary changed"
    del one.second
    one.second = 2
    assert watch()
    one.third = 3
    assert not watch()


@pytest.mark.parametrize("slot", ["__code__", "__defaults__", "__kwdefaults__"])
def test_slots_of_a_function_are_watched(slot):
    def function(a=1, *, b=2):
        return a, b

    def other(a=3, *, b=4):
        return b, a

    watch = Watch()
    before = getattr(function, slot)
    watch.location(function, slot, before, False)
    assert watch() and watch()
    setattr(function, slot, getattr(other, slot))
    assert not watch()
    setattr(function, slot, before)
    assert watch()


def test_absent_defaults_are_watched():
    def function():
        pass

    watch = Watch()
    watch.location(function, "__defaults__", None, False)
    assert watch() and watch()
    function.__defaults__ = (1,)
    assert not watch()
    function.__defaults__ = None
    assert watch()


def test_each_of_many_dictionaries_is_watched():
    dictionaries = [{"a": i} for i in range(100)]
    watch = Watch()
    for i, d in enumerate(dictionaries):
        watch.location(d, "a", i, True)
    assert watch()
    for i, d in enumerate(dictionaries):
        d["b"] = 1
        assert watch(), "another entry"
        d["a"] = -1
        assert not watch()
        d["a"] = i
        assert watch()


def test_change_by_a_comparison_of_the_watch_itself_is_noticed():
    class Key:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            entries["a"] = 2
            return self is other

    entries = {"a": 1, Key(): 3}
    watch = Watch()
    watch.location(entries, "a", 1, True)
    watch.location(entries, Key(), ABSENT, False)
    watch()  # compares the keys after the entry
    assert entries["a"] == 2
    assert not watch()


def test_change_in_another_thread_is_noticed():
    entries = {"a": 1}
    watch = Watch()
    watch.location(entries, "a", 1, True)
    assert watch()
    thread = threading.Thread(target=entries.update, kwargs={"a": 2})
    thread.start()
    thread.join()
    assert not watch()


def test_result_of_a_call_is_watched():
    now = [(1, 2)]
    watch = Watch()
    watch.result(lambda: now[0], "now()", now[0])
    assert watch()
    now[0] = tuple([1, 2])
    assert watch(), "an equal one"
    now[0] = [1, 2]
    assert not watch(), "of another type"
    assert "now()" in watch.why()
    now.clear()
    with pytest.raises(IndexError):
        watch()


# --- calls with known arguments -------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_exception_of_a_check_is_raised(error):
    """A signal's handler may have raised it."""

    def check():
        raise error

    watch = Watch()
    watch.location(check, "a check", True, False)
    with pytest.raises(error):
        watch()
    with pytest.raises(error):
        watch.why()


def test_exception_of_a_comparison_is_raised():
    class Key:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise KeyboardInterrupt

    key, table = Key(), {}
    table[Key()] = 1
    watch = Watch()
    watch.location(table, key, ABSENT, False)
    with pytest.raises(KeyboardInterrupt):
        watch()


@pytest.mark.parametrize(
    ("before", "after"), [(0.0, -0.0), ((1,), (1.0,)), (frozenset([1]), frozenset([True]))]
)
def test_keys_that_are_equal_but_differ_are_told_apart(before, after):
    table = {before: 1}
    watch = Watch()
    watch.size(table, list(table))
    assert watch()
    table.clear()
    table[after] = 1
    assert not watch()


def test_known_arguments_are_passed_in_their_places():
    call = PartialCall(lambda *args: args, (ABSENT, 1, ABSENT, 2))
    assert call("a", "b") == ("a", 1, "b", 2)
    assert PartialCall(lambda: 3, ())() == 3
    for wrong in [(), ("a",), ("a", "b", "c")]:
        with pytest.raises(TypeError):
            call(*wrong)


def test_thousands_of_known_arguments_keep_their_reference_counts():
    value = object()
    call = PartialCall(lambda *args: len(args), (ABSENT, *[value] * 5000))
    before = sys.getrefcount(value)
    assert [call(None) for _ in range(3)] == [5001] * 3
    assert sys.getrefcount(value) == before


def test_exception_of_the_function_is_raised():
    def fail(*args):
        raise ValueError(args)

    with pytest.raises(ValueError, match="1"):
        PartialCall(fail, (1,))()


# --- observers of operators -----------------------------------------------------------------------


def test_operators_are_not_observed_by_default():
    assert not is_unusual()
    with torch.no_grad(), torch.autocast("cpu"):
        assert not is_unusual()


def test_each_observer_of_operators_is_noticed():
    seen = []

    def note(x):
        seen.append(is_unusual())
        return x * 2

    torch.vmap(note)(torch.ones(2))
    torch.func.grad(lambda x: note(x).sum())(torch.ones(2))
    torch.jit.trace(note, torch.ones(2), check_trace=False)
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        note(torch.ones(2))
    with torch.device("meta"):
        note(torch.ones(2))
    with TorchDispatchMode():
        seen.append(is_unusual())
    assert seen == [True] * 6


def test_hooks_on_saved_tensors_see_nothing_without_gradients():
    with saved_tensors_hooks(lambda x: x, lambda x: x), torch.no_grad():
        assert not is_unusual()


def test_tensors_in_the_same_memory_are_found():
    x, y = torch.arange(8.0), torch.arange(8.0)
    part = torch.from_numpy(x.numpy()[3:])
    assert memory_of(x, y, x[1:], part, torch.from_dlpack(x)) == (0, 0, 1, 0, 0, 4, 0, 12, 0, 0)
    assert memory_of(part, x) == (0, 0, 0, -12)
    first, last = torch.from_numpy(x.numpy()[:3]), torch.from_numpy(x.numpy()[5:])
    assert memory_of(first, last) == (0, 0, 1, 0)
    assert memory_of(last, x, first) == (0, 0, 0, -20, 0, -20)


def test_tensors_without_memory_share_none():
    empty, other = torch.empty(0), torch.empty(0)
    meta, another = (torch.empty(3, device="meta") for _ in range(2))
    assert memory_of(empty, other, meta, another)[::2] == (0, 1, 2, 3)
    assert memory_of(meta[1:], meta)[::2] == (0, 0)
    assert memory_of() == ()


def test_tensors_that_refuse_access_to_their_storage_share_none():
    with FakeTensorMode() as mode:
        fake, other = torch.empty(3), mode.from_tensor(torch.ones(3))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    found = []
    torch.vmap(lambda x: found.append(memory_of(x, fake, other, nested)[::2]) or x)(
        torch.ones(2, 3)
    )
    assert found == [(0, 1, 2, 3)]


def test_memory_of_what_is_no_tensor_is_an_error():
    with pytest.raises(TypeError, match="tensors"):
        memory_of(torch.ones(1), None)
