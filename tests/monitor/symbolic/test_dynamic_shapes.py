"""Sizes that vary between calls: one record for all, and a miss where the control flow differs.

Each entry is a program, the sizes of its tensors in the recorded call, sizes that the same record
must serve, and sizes that it must not serve because the program behaves differently there.
"""

import math

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from tests.programs import Twins, matrix


def sized(*shapes):
    """A function that returns tensors of these shapes; other values are arguments themselves."""

    def inputs():
        return tuple(
            torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) / 7 - 1
            if isinstance(shape, tuple)
            else shape
            for shape in shapes
        )

    return inputs


def adds_a_size(x):
    return x + x.shape[0]


def returns_sizes(x):
    return x.shape, x.size(), x.size(1), len(x), x.numel(), x.stride(), x.shape[-1], x.nelement()


def unpacks_sizes(x):
    rows, columns = x.shape
    (first, *rest) = x.size()
    return x.reshape(columns, rows), first, rest, [n + 1 for n in x.shape]


def concatenates_sizes(x, y):
    shape = x.shape[:-1] + (y.shape[0], 2)
    return torch.zeros(shape), torch.zeros(*x.shape, 3), shape, torch.Size([len(y), 3])


def keyword_size(x):
    return x.size(dim=0), getattr(x, "shape")[1]


def arithmetic(x):
    n = x.shape[0]
    return n * 2 - 1, n // 2, n % 3, -n, n / 4, n**2, divmod(n, 1) if n < 0 else abs(n)


def sizes_of_results(x):
    y = torch.cat([x, x], 1)
    z = y.view(-1)
    w = z[: z.shape[0] // 2]
    return y.shape[1] - 1, z.numel(), len(w), torch.arange(len(w)) + w


def branches(x):
    return x * 2 if x.shape[0] > 4 else x - 1


def compares_two(x, y):
    return x + y if x.shape == y.shape else x.sum() + y.sum()


def compares_parts(x, y):
    return x @ y.T if x.shape[1:] == y.shape[1:] else x.sum() * y.sum()


def chained_comparisons(x):
    n = len(x)
    if 2 < n <= 8 and n % 2 == 0:
        return x.view(2, n // 2, -1)
    return x


def is_among(x):
    return x + 1 if x.shape[0] in (3, 4) else x - 1


def truth(x):
    return x + 1 if x.shape[0] - 4 else x - 1


def compares_with_none(x):
    n = x.shape[0]
    return x * n if n is not None else x


def largest(x, y):
    return torch.zeros(max(x.shape[0], y.shape[0]), min(x.shape)), math.prod(x.shape), sum(x.shape)


def takes_a_root(x):
    return x / math.sqrt(x.shape[-1]), math.ceil(x.shape[0] / 2), int(x.shape[0] * 0.5)


def counts_in_a_loop(x):
    for i in range(x.shape[0]):
        x = x + i
    return x


def unbinds(x):
    return [row * i for i, row in enumerate(x)]


def chunks(x):
    return x.chunk(2)


def is_a_key(x):
    return x * {4: 10, 5: 20}.get(x.shape[0], 30)


def formats_sizes(x):
    return x * 2, f"{x.shape[0]} rows", "%d by %d" % (x.shape[0], x.shape[1]), str(x.shape)


def is_in_a_set(x):
    return x * 2, {x.shape[0], 4}


def makes_keys(x):
    return x * 2, {x.shape[0]: "rows", x.shape[1]: "columns"}


def slices(x):
    n = x.shape[0]
    return x[1 : n - 1], x[n // 2], x[..., : x.size(1) - 1]


def splits_evenly(x):
    batch, length = x.shape
    return x.view(batch, 2, length // 2).transpose(1, 2).reshape(batch, -1)


def pads(x):
    return F.pad(x, (0, 8 - x.shape[1]))


def broadcasts(x, y):
    return x + y


def reads_contiguity(x):
    return x * 2 if x.is_contiguous() else x


def repeats(x):
    return x.repeat(2, 1).shape, [0] * 2 + [x.shape[0]], (x.shape[0],) * 2


def sorts(x):
    return sorted(x.shape), x + 1


def reduces(x):
    return x.sum(x.dim() - 1) / x.shape[-1], x.mean(0).expand(x.shape[0], -1)


class Counting:
    def __init__(self):
        self.seen = 0

    def __call__(self, x):
        self.seen += len(x)
        return x * 2


PROGRAMS = {
    "a size as a number": (adds_a_size, [(4, 3)], [[(6, 3)], [(5, 8)]], [[(1, 3)], [(0, 3)]]),
    "all forms of reading": (returns_sizes, [(4, 3)], [[(6, 2)]], [[(1, 3)], [(4, 3, 2)]]),
    "unpacking": (unpacks_sizes, [(4, 3)], [[(5, 3)]], [[(4, 3, 2)]]),
    "concatenation": (concatenates_sizes, [(4, 3), (5,)], [[(6, 2), (7,)]], [[(4, 3), (1,)]]),
    "keyword": (keyword_size, [(4, 3)], [[(6, 2)]], []),
    "arithmetic": (arithmetic, [(4, 3)], [[(7, 2)]], []),
    "sizes of results": (sizes_of_results, [(4, 3)], [[(6, 5)]], []),
    "branch": (branches, [(6, 3)], [[(5, 3)], [(9, 3)]], [[(4, 3)], [(2, 3)]]),
    "equal shapes": (compares_two, [(4, 3), (4, 3)], [[(6, 2), (6, 2)]], [[(4, 3), (5, 3)]]),
    "equal parts": (compares_parts, [(4, 3), (2, 3)], [[(6, 2), (5, 2)]], [[(4, 3), (2, 4)]]),
    "conditions": (chained_comparisons, [(6, 3)], [[(8, 3)], [(4, 2)]], [[(7, 3)], [(10, 3)]]),
    "membership": (is_among, [(6, 3)], [[(5, 3)]], [[(3, 3)], [(4, 3)]]),
    "truth": (truth, [(6, 3)], [[(5, 3)]], [[(4, 3)]]),
    "not None": (compares_with_none, [(6, 3)], [[(5, 3)]], []),
    "extremes": (largest, [(6, 3), (4, 2)], [[(9, 2), (10, 3)]], []),
    "root": (takes_a_root, [(6, 3)], [[(5, 7)]], []),
    "loop": (counts_in_a_loop, [(4, 3)], [[(4, 5)]], [[(7, 3)], [(1, 3)]]),
    "rows": (unbinds, [(4, 3)], [[(4, 5)]], [[(5, 3)]]),
    "chunks": (chunks, [(4, 3)], [[(4, 5)]], []),
    "key": (is_a_key, [(4, 3)], [[(4, 5)]], [[(5, 3)], [(6, 3)]]),
    "text": (formats_sizes, [(4, 3)], [], [[(5, 3)], [(4, 5)]]),
    "set": (is_in_a_set, [(4, 3)], [[(4, 5)]], [[(5, 3)]]),
    "keys of a new dictionary": (makes_keys, [(4, 3)], [], [[(3, 3)], [(4, 4)]]),
    "slices": (slices, [(6, 3)], [[(9, 5)]], []),
    "views": (splits_evenly, [(6, 4)], [[(5, 8)]], []),
    "padding": (pads, [(6, 4)], [[(5, 7)]], []),
    "equal by an operator": (broadcasts, [(6, 4), (6, 4)], [[(5, 7), (5, 7)]], [[(6, 4), (1, 4)]]),
    "contiguous": (reads_contiguity, [(6, 4)], [[(5, 7)]], []),
    "repetition": (repeats, [(6, 4)], [[(5, 7)]], []),
    "order": (sorts, [(6, 4)], [], [[(5, 4)], [(4, 6)]]),
    "reduction": (reduces, [(6, 4)], [[(5, 7)]], []),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_record_serves_all_sizes_with_the_same_control_flow(name):
    program, recorded, hits, misses = PROGRAMS[name]
    twins = Twins(lambda: program, dynamic=True)
    twins.call(sized(*recorded), hit=False)
    for shapes in (recorded, *hits):
        twins.call(sized(*shapes), hit=True, why=f"{name}: {shapes}")
    for shapes in misses:
        twins = Twins(lambda: program, dynamic=True)
        twins.call(sized(*recorded), hit=False)
        twins.call(sized(*shapes), hit=False, why=f"{name}: {shapes}")
        for later in (shapes, recorded, *hits, *misses):
            twins.call(sized(*later), why=f"{name}: {later} later")


def test_size_guard_may_multiply_by_a_fraction():
    """Interpolation compares the rows of an image before and after a scaling by 1.07."""
    function = lambda x: F.interpolate(x, scale_factor=1.07, mode="bilinear")
    fast = magpy.compile(function, dynamic=True)
    for rows in (20, 33, 41):
        (x,) = sized((1, 2, rows, rows + 5))()
        torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)
    assert magpy.cache_info(fast).records == 1


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolution_does_not_guard_the_batch_size(layout, kernel, backend):
    weight = torch.linspace(-1, 1, 4 * 2 * kernel**2).view(4, 2, kernel, kernel)

    def program(x):
        y = F.conv2d(x, weight) * 2
        return y, y.stride(), y.shape[0]

    twins = Twins(lambda: program, dynamic=True, backend=backend)
    for i, images in enumerate((3, 16, 40, 15)):
        x = torch.linspace(-1, 1, images * 2 * 8 * 8).view(images, 2, 8, 8)
        twins.call(lambda x=x: (x.to(memory_format=layout),), hit=i > 0)
    twins.call(lambda: (torch.ones(3, 1, 8, 8),))


def test_convolution_guards_that_its_filter_fits():
    weight = torch.ones(1, 1, 16, 16)
    twins = Twins(lambda: lambda x: F.conv2d(x, weight).shape, dynamic=True)
    for i, (images, height) in enumerate(((3, 20), (17, 18), (4, 16))):
        twins.call(lambda n=images, h=height: (torch.ones(n, 1, h, 20),), hit=i == 1 or None)
    twins.call(lambda: (torch.ones(4, 1, 15, 20),))


def test_implied_size_guards_are_merged():
    def program(x, y):
        n, m = x.shape[0], y.shape[0]
        if 2 < n and n != 2 and n > 3 and n < 30 and n <= 20 and 2 * n < 100:
            x = x * 2
        if n + m > 1 and m * 2 > n and 2 * m >= n + 1 and m * 2 != n and m * 2 + 1 > n:
            x = x + 1
        return x

    twins = Twins(lambda: program, dynamic=True)
    twins.call(sized((6,), (5,)), hit=False)
    (record,) = magpy.api._dispatcher(twins.compiled).records
    sizes = [text for text in record.guards if "float32[" in text]
    assert [text.split("32")[1] for text in sizes] == ["[4..20] on cpu", "[2..] on cpu"]
    assert len([text for text in record.guards if ".size(" in text]) == 1
    twins.call(sized((4,), (3,)), hit=True)
    for n, m in ((20, 10), (3, 8), (21, 20)):
        twins.call(sized((n,), (m,)), hit=False, why=f"{n} and {m}")


def test_sizes_stored_in_tensors_stay_symbolic():
    def program(x):
        span = torch.tensor(min(x.shape[0], 16))
        table = torch.arange(32.0)[16 - span : 16 + span]
        return table, torch.clamp(x, 0, span * 2 - 1), x.shape[0] + span.item()

    twins = Twins(lambda: program, dynamic=True, backend="aot_eager")
    twins.call(sized((4, 3)), hit=False)
    twins.call(sized((3, 2)), hit=True)
    twins.call(sized((9, 2)), hit=True)
    twins.call(sized((40, 2)))


def test_changed_tensor_has_a_changed_number():
    def program(x):
        span = torch.tensor(x.shape[0])
        span += 1
        return x[: span - 3], span.item()

    twins = Twins(lambda: program, dynamic=True)
    for rows in (4, 6, 9):
        twins.call(sized((rows, 3)))


def test_strides_are_derived_from_sizes():
    twins = Twins(lambda: lambda x: (x * 2, x.stride()), dynamic=True)
    twins.call(lambda: (torch.ones(4, 6).t(),), hit=False)
    twins.call(lambda: (torch.ones(5, 7).t(),), hit=True)
    twins.call(lambda: (torch.ones(5, 7),), hit=False, why="laid out in another order")
    twins.call(lambda: (torch.ones(5, 14)[:, ::2],), hit=False, why="with gaps")


def test_sizes_in_containers_and_attributes_may_vary():
    class Box:
        pass

    def program(batch, box):
        return batch["x"][0].sum(0) * box.y.shape[0]

    def inputs(rows):
        box = Box()
        box.y = torch.ones(rows)
        return {"x": [torch.ones(rows, 3)]}, box

    twins = Twins(lambda: program, dynamic=True)
    twins.call(lambda: inputs(4), hit=False)
    twins.call(lambda: inputs(6), hit=True)


def test_sizes_in_keyword_arguments_may_vary():
    def program(x, **options):
        if "offset" in options:
            x = x + options["offset"]
        return x.sum() * torch.arange(options["n"])

    def caller(x):
        return program(x, n=x.shape[0])

    twins = Twins(lambda: caller, dynamic=True)
    twins.call(sized((4, 3)), hit=False)
    twins.call(sized((6, 3)), hit=True)


def test_sizes_of_parameters_are_constants():
    twins = Twins(lambda: torch.nn.BatchNorm1d(3).eval(), dynamic=True)
    twins.call(sized((4, 3)), hit=False)
    twins.call(sized((7, 3)), hit=True)
    (record,) = twins.compiled._magpy.records
    assert record.lifted == ["args[0].size(0)"], "the other size must equal that of the parameters"


def test_attribute_sums_up_varying_sizes():
    twins = Twins(Counting, dynamic=True)
    for rows in (4, 6, 3, 9, 2):
        twins.call(sized((rows, 3)))
    assert magpy.cache_info(twins.compiled).hits >= 3


def test_written_inputs_with_shared_memory_match_eager():
    def program(x, y):
        x.add_(1)
        return y * 2

    def inputs(n):
        base = torch.arange(2.0 * n)
        return base[:n], base[n - 1 :]

    twins = Twins(lambda: program, dynamic=True)
    for n in (4, 4, 5, 6, 4):
        twins.call(lambda n=n: inputs(n))


def test_dynamic_false_makes_a_record_for_each_size():
    twins = Twins(lambda: adds_a_size, dynamic=False)
    for rows in (4, 5, 6):
        twins.call(sized((rows, 3)), hit=False)
        twins.call(sized((rows, 3)), hit=True)


def test_gradients_flow_at_every_size():
    def program(x, w):
        return (x @ w).view(-1) * x.shape[0]

    twins = Twins(lambda: program, dynamic=True, backend="aot_eager")
    for i, rows in enumerate((4, 6, 3)):
        twins.call(
            lambda rows=rows: (torch.ones(rows, 3, requires_grad=True), torch.ones(3, 2)),
            hit=i > 0,
            backward=True,
        )


DATA = {
    "nonzero": lambda x: ((x > 0).nonzero() * 2, (x > 0).nonzero().shape[0]),
    "mask": lambda x: x[x > 0] + 1,
    "unique": lambda x: x.round().unique().sum(),
    "size of a mask": lambda x: x[x > 0] / x[x > 0].shape[0],
    "item": lambda x: (x * x.sum().item(), x.max().item()),
    "int of an item": lambda x: torch.arange(int(x.abs().sum())),
    "list": lambda x: x * int((x > 0).sum()) + float(x.max()),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", DATA)
def test_data_dependent_sizes_and_numbers_stay_in_one_graph(name, dynamic, backend):
    twins = Twins(lambda: DATA[name], dynamic=dynamic, backend=backend, fullgraph=True)
    for i, shift in enumerate((0, 0.5, 3, -0.5)):
        twins.call(lambda shift=shift: (torch.linspace(-2, 2, 6) + shift,), hit=i > 0)


def test_branch_on_a_data_dependent_size_matches_eager():
    def program(x):
        y = x[x > 0]
        return y + 1 if y.shape[0] > 3 else y - 1

    twins = Twins(lambda: program, dynamic=True)
    for shift in (0, 3, -3, 0.5, 3):
        twins.call(lambda shift=shift: (torch.linspace(-2, 2, 6) + shift,))


def _draws_random_numbers(x):
    y = F.dropout(x, 0.5) + torch.rand(x.shape[0], 1) + torch.randn_like(x)
    y = y + torch.empty_like(x).uniform_() + torch.bernoulli(x.sigmoid())
    return y + torch.normal(x, 1.0) + torch.randperm(x.shape[0])[:, None]


def test_symbolic_twin_writes_to_no_tensor_of_the_program():
    """A checkpointed function holds tensors that are not among its arguments."""

    def make():
        norm = torch.nn.BatchNorm1d(3)

        def program(x):
            y = torch.utils.checkpoint.checkpoint(norm, x, use_reentrant=False)
            return y * 2, norm.num_batches_tracked.clone(), norm.running_var.clone()

        return program

    twins = Twins(make, dynamic=True)
    for size in (2, 5, 4):
        twins.call(lambda size=size: (matrix(size, 3, grad=True),), hit=size != 2)


def test_symbolic_twin_does_not_rewind_generators(monkeypatch):
    twins = Twins(lambda: _draws_random_numbers, dynamic=True)

    def rewinds(state):
        raise AssertionError("another thread may have drawn meanwhile")

    monkeypatch.setattr(torch, "set_rng_state", rewinds)
    for i, rows in enumerate((3, 5, 7)):
        twins.call(sized((rows, 2)), hit=i > 0)


class _HoldsState(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.state = None

    def forward(self, x):
        if self.state is None or self.state.shape[0] != x.shape[0]:
            self.state = x.new_zeros(x.shape[0], 2)
        self.state = (self.state + x).detach()
        return self.state


def test_state_replaced_at_a_new_batch_size_hits():
    twins = Twins(_HoldsState)
    for i, rows in enumerate([4, 4, 4, 3, 3, 4, 2, 2, 5, 5, 4, 3, 4]):
        twins.call(lambda rows=rows: (matrix(rows, 2),), hit=True if i > 5 else None)
    assert not magpy.api._dispatcher(twins.compiled).split_points


@pytest.mark.parametrize(
    "read",
    [
        lambda row: row.stride(0),
        lambda row: sum(row.stride()),
        lambda row: row.is_contiguous(),
        lambda row: row.storage_offset(),
    ],
    ids=["stride", "strides", "contiguous", "offset"],
)
def test_strides_of_a_row_are_derived_from_the_sizes_of_its_tensor(read):
    def program(x):
        return x[:, 0] + read(x[:, -1])

    fast = magpy.compile(program, backend="eager")
    for size in (12, 15, 9, 5, 1, 2):
        x = torch.ones(2, size, 3)
        assert torch.equal(fast(x), program(x))


def test_sizes_that_native_code_computes_from_a_torch_size_follow_it():
    w = torch.arange(4.0).view(1, 4)

    def program(n):
        return w.expand(torch._C._infer_size(torch.Size([n, 1]), torch.Size([1, 4]))).sum()

    fast = magpy.compile(program, backend="eager")
    for n in (3, 3, 4, 5, 6):
        torch.testing.assert_close(fast(n), program(n))
