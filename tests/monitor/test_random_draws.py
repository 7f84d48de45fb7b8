"""Random numbers of Python and NumPy, which the mock draws again in the order of eager mode."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.torch_compat.supported_torch import installed
from tests.compare import assert_same
from tests.programs import Twins, one

OWN = random.Random(3)
ARRAYS = np.random.default_rng(5)
OLD = np.random.RandomState(4)
SCALES = [0.5, 1.0, 1.5]
ORDER = [1, 2, 3]
LOG = []


@magpy.disable
def append_to_log(value):
    LOG.append(value)


def _shuffled(x):
    order = [0, 1, 2]
    random.shuffle(order)
    return x[order], order


def _shuffled_by_numpy(x):
    order, same = [0, 1, 2], []
    same.append(order)
    np.random.shuffle(order)
    return x[order], same


def _unpacked(x):
    i, j = random.sample(range(3), 2)
    return x[i] - x[j]


def _container_changed_later(x):
    values = [1, 2, 3]
    value = random.choice(values)
    values.append(10)
    return x * value, values


def _beta(x):
    share = np.random.beta(1.0, 1.0)
    return share * x + (1 - share) * x.flip(0)


def _sorted_in_place(x):
    rows = np.random.choice(3, 2, replace=False)
    rows.sort()
    return x[rows], rows


def _sorted_under_a_view(x):
    noise = np.random.rand(3, 1).astype(np.float32)
    view, first = noise.reshape(-1), noise.item(0)
    before = noise.copy()
    noise.sort(axis=0)
    return x * torch.from_numpy(view) + first, [noise, noise], before, noise.item(0)


def _arrays_as_indices(x):
    i, j = np.random.choice(3, 2), np.random.permutation(3).astype(np.int32)
    before = x[i]
    i.sort()
    return before, x[i], x[..., i], x[i, None], x[np.random.randint(0, 3, size=(2, 2))], x[j]


def _arithmetic(x):
    noise = np.clip(np.random.rand(3) * 2 - 1, -0.5, 0.5).astype(np.float32)
    return x + torch.from_numpy(noise), noise


def _array_kept_twice(x):
    array = np.random.rand(3)
    return array, [array], torch.from_numpy(array) + x, array.shape[0] * x


def _new_generators(x):
    generator, own = np.random.default_rng(1), random.Random(2)
    old = np.random.RandomState(0)
    y = x * generator.random() + torch.from_numpy(generator.permutation(3))
    return y * own.uniform(0.0, 2.0) + old.uniform(), generator, old.rand(2)


def _seeded(x):
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    return x * random.random() + np.random.rand() + torch.rand(3), np.random.rand(2)


def _seeded_without_draw(x):
    torch.manual_seed(3)
    torch.rand(3)
    return x


def _seeded_again(x):
    random.seed(1)
    first = random.random()
    random.seed(1)
    return x * (random.random() - first)


def _numbers_of_numpy(x):
    n = ARRAYS.integers(1, 9)
    y = x[ARRAYS.integers(0, 3)] * (n * 2 + 1) + float(ARRAYS.integers(0, 3) + 0.5)
    return y, n, x.long() * ARRAYS.integers(0, 9), f"{n} of {ARRAYS.random():.3f}"


def _sizes_of_numpy(x):
    return torch.ones(int(ARRAYS.integers(2, 5))), torch.full((2,), ARRAYS.integers(2, 5))


def _statistics(x):
    array = np.random.rand(3)
    return x * float(array.mean()) + array.std(), array.sum(), np.stack([array, array + 1])


def _lists_of_draws(x):
    values = [random.random() for _ in range(3)]
    return torch.tensor(values) * x, torch.tensor([random.randint(0, 4), 2]), sum(values), values


def _array_in_a_loop(x):
    for value in np.random.rand(3):
        x = x + float(value)
    return x


def _array_in_a_comprehension(x):
    return [x * value for value in np.random.rand(2)], [i for i in np.random.permutation(3)]


ONE_GRAPH = {
    "one of Python's numbers": lambda x: x * random.random() + OWN.random(),
    "in a range": lambda x: x * random.uniform(0.5, 1.5) + random.randint(0, 9),
    "of a distribution": lambda x: x + random.gauss(mu=0, sigma=1) * random.betavariate(2, 3),
    "bits": lambda x: x * random.getrandbits(4),
    "an index": lambda x: x[random.randint(0, 2)],
    "a bound": lambda x: x[: random.randint(1, 3)],
    "one of a list from outside": lambda x: x * random.choice(SCALES),
    "one of a list": lambda x: x * random.choice([1, 2, 3]),
    "text": lambda x: (x, random.choice("abc")),
    "several of a list": lambda x: x * torch.tensor(random.choices(SCALES, weights=[1, 2, 3], k=3)),
    "a sample as index": lambda x: x[random.sample(range(3), 2)],
    "the sum of a sample": lambda x: x * sum(random.sample([1, 2, 3, 4], 2)),
    "one of NumPy's": lambda x: x * np.random.rand() + OLD.uniform(0.0, 2.0) + ARRAYS.normal(),
    "an array": lambda x: x * torch.from_numpy(np.random.rand(3)).float(),
    "an array by torch.tensor": lambda x: x + torch.tensor(np.random.randn(3)),
    "an array of another type": lambda x: torch.as_tensor(np.random.rand(3), dtype=x.dtype) * x,
    "integers": lambda x: x[torch.from_numpy(np.random.randint(0, 3, size=4))],
    "a permutation": lambda x: x[torch.from_numpy(np.random.permutation(3))],
    "choices of NumPy": lambda x: x * torch.tensor(np.random.choice(3, 2)).sum(),
    "a weighted choice": lambda x: x * np.random.choice([0.1, 0.2, 0.3], p=[0.5, 0.25, 0.25]),
    "a mask": lambda x: x[torch.from_numpy(np.random.rand(3) > 0.5)],
    "of a generator": lambda x: x + torch.from_numpy(ARRAYS.random(3)) * ARRAYS.random(),
    "functions of NumPy": lambda x: x + torch.from_numpy(np.exp(np.maximum(OLD.rand(3), 0.5))),
    "results": lambda x: (x, random.random(), np.random.rand(2), random.sample(range(9), 3)),
    **{
        program.__name__: program
        for program in (
            *(_shuffled, _shuffled_by_numpy, _unpacked, _container_changed_later, _beta),
            *(_arithmetic, _array_kept_twice, _new_generators, _seeded, _seeded_without_draw),
            *(_seeded_again, _numbers_of_numpy, _sizes_of_numpy, _statistics, _lists_of_draws),
            *(_sorted_in_place, _sorted_under_a_view, _arrays_as_indices),
            *(_array_in_a_loop, _array_in_a_comprehension),
        )
    },
}


def _states():
    """One draw of each generator, which depends on the state that the program has left."""
    drawn = random.random(), np.random.rand(), OWN.random(), OLD.rand(), ARRAYS.random()
    return *drawn, torch.rand(1)


def _seed_all(seed):
    for generator in (random, np.random, OWN, OLD):
        generator.seed(seed)
    ARRAYS.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    torch.default_generator.manual_seed(seed)
    LOG.clear()
    ORDER.sort()


def _compare(program, calls=6, **settings):
    """Compares compiled and eager calls from one seed: results, log, and states of generators."""
    fast = magpy.compile(program, **{"backend": "eager", **settings})
    outcomes = []
    for run in (fast, program):
        _seed_all(0)
        results = []
        for i in range(calls):
            results.append((run(torch.arange(3.0) + i), _states(), list(LOG)))
        outcomes.append(results)
    assert_same(*outcomes)
    return fast


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_draws_hit_from_the_second_call_in_one_graph(name):
    fast = _compare(ONE_GRAPH[name])
    info = magpy.cache_info(fast)
    assert (info.misses, info.hits, info.records) == (1, 5, 1)
    assert not magpy.api._dispatcher(fast).split_points


@pytest.mark.parametrize("name", ["an array", "_unpacked", "_numbers_of_numpy", "_lists_of_draws"])
@pytest.mark.parametrize("backend", ["aot_eager", "magpy"])
def test_draws_are_inputs_of_compiled_graphs(name, backend):
    _compare(ONE_GRAPH[name], 3, backend=backend)


@pytest.mark.parametrize("name", ["an array", "_arithmetic", "_numbers_of_numpy", "_unpacked"])
def test_draws_are_inputs_of_dynamic_graphs(name):
    _compare(ONE_GRAPH[name], 3, dynamic=True)


def _array_in_a_branch(x):
    return x + 1 if (np.random.rand(3) > 0.7).any() else x - 1


def _array_that_chooses_in_a_loop(x):
    for i in np.random.choice(3, 2, replace=False):
        x = x * SCALES[i] + 1
    return x, i


def _array_sorted_in_a_loop(x):
    order = np.random.permutation(3)
    for i in order:
        x = x * 2 + int(i)
        order.sort()
    return x


def _array_from_an_iterator(x):
    values = iter(np.random.rand(3))
    x = x * next(values)
    for value in values:
        x = x + value
    return x


def _rows_in_a_loop(x):
    for row in np.random.rand(2, 3):
        x = x * torch.from_numpy(row)
    return x


def _shuffled_numbers_of_two_types(x):
    order = [1, 2.5]
    random.shuffle(order)
    return x * order[0], type(order[0]) is int


def _array_as_a_list(x):
    return x + torch.tensor(np.random.rand(3).tolist())


def _array_changed(x):
    array = np.random.rand(3)
    tensor = torch.from_numpy(array)
    array[0] = 5.0
    return x + tensor, array


def _array_changed_through_a_tensor(x):
    array = np.random.rand(3)
    torch.from_numpy(array).add_(x)
    return array


def _array_doubled(x):
    array = np.random.rand(3)
    array *= 2
    return x + torch.from_numpy(array), array


def _order_of_tensors(x):
    order = [x, x + 1, x + 2]
    random.shuffle(order)
    return order[0] - order[1]


def _order_of_an_array_with_a_view(x):
    order = np.arange(3)
    view = order[::-1]
    np.random.shuffle(order)
    return x * torch.tensor(order) + torch.tensor(view.copy())


def _order_outside(x):
    random.shuffle(ORDER)
    return x * ORDER[0], list(ORDER)


def _logged(x):
    array, number = np.random.rand(3), random.random()
    append_to_log(float(number))
    y = x + torch.from_numpy(array) * number
    append_to_log(array.tolist())
    return y


def _seeded_after_a_draw(x):
    noise = torch.rand(3)
    torch.manual_seed(7)
    return x * torch.rand(3) + noise


def _restored(x):
    state = random.getstate()
    y = x * random.random()
    random.setstate(state)
    return y + random.random()


def _forked(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = torch.rand(3)
    return x + y


def _error_caught(x):
    try:
        return x * random.randint(5, 1)
    except ValueError:
        return x * random.choice([1, 2])


class _Fixed(random.Random):
    def random(self):
        return 0.25


NATIVE = [
    *(_array_in_a_branch, _array_as_a_list, _array_changed, _array_that_chooses_in_a_loop),
    *(_array_sorted_in_a_loop, _array_from_an_iterator, _rows_in_a_loop),
    *(_array_changed_through_a_tensor, _array_doubled, _order_of_tensors, _order_outside),
    *(
        _order_of_an_array_with_a_view,
        _logged,
        _seeded_after_a_draw,
        _restored,
        _forked,
        _error_caught,
    ),
    _shuffled_numbers_of_two_types,
    lambda x: x * random.choice([1, 2.5, True]),
    lambda x: x.long() * random.choice([1, 2.5]),
    lambda x: random.choice([torch.sin, torch.cos])(x),
    lambda x: random.choice([x, x + 1, x * 2]) * 3,
    lambda x: x + 1 if random.choice(["red", "green"]) == "red" else x - 1,
    lambda x: x * {"red": 1, "green": 2}[random.choice(["red", "green"])],
    lambda x: (x, random.choice([None, 1]), random.choice(["", "z"])),
    lambda x: x[np.random.permutation(3)],
    lambda x: x + 1 if ARRAYS.integers(0, 3) > 1 else x - 1,
    lambda x: x + 1 if not ARRAYS.integers(0, 2) else x - 1,
    lambda x: [x, x + 1, x + 2][ARRAYS.integers(0, 3)],
    lambda x: [x * i for i in range(ARRAYS.integers(0, 4))],
    lambda x: (x, np.random.rand(2).tobytes(), random.randbytes(2)),
    lambda x: x * _Fixed(1).uniform(0, 1),
    lambda x: x + torch.rand(3, generator=torch.Generator().manual_seed(3)),
    lambda x: x + torch.from_numpy(np.random.rand(3, 2).T.copy()).sum(),
]


@pytest.mark.parametrize("program", NATIVE)
def test_control_flow_on_draws_matches_eager(program):
    _compare(program, 10)


class _DrawsAndBranches(torch.nn.Module):
    """Draws from its own generators before a branch whose condition may be misspeculated."""

    def __init__(self):
        super().__init__()
        self.arrays, self.own = np.random.default_rng(5), random.Random(3)
        self.seen = []

    def forward(self, x):
        noise = torch.from_numpy(self.arrays.random(3)) * self.own.random()
        self.seen.append(self.arrays.random())
        return x + noise if (x + noise).sum() > 3 else x - noise


def test_misspeculation_rolls_back_every_generator():
    twins = Twins(_DrawsAndBranches)
    for values in ((1.0, 2.0), (1.0, 2.0), (-1.0, -2.0), (1.0, 2.0), (-3.0, 1.0)):
        twins.call(one(*values, 1.0))
        assert twins.eager.arrays.random() == twins.target.arrays.random()
        assert twins.eager.own.random() == twins.target.own.random()


@pytest.mark.parametrize("training", [False, True])
def test_misspeculation_after_dropout_rolls_back_its_draws(device, training):
    def program(x):
        y = nn.functional.dropout(x, training=training)
        kept = y[y > 1]
        return kept * 2 if kept.shape[0] > 1 else y - 1

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for seed, scale in enumerate((5.0, 5.0, 0.1, 0.1, 5.0)):
        x = torch.arange(1.0, 9.0, device=device) * scale
        results = []
        for run in (program, fast):
            torch.manual_seed(seed)
            results.append((run(x), run(x), torch.rand(2, device=device)))
        assert_same(*results)
    assert magpy.cache_info(fast).hits > 3


_OTHER_DEVICE = torch.Generator()


@torch.library.custom_op("magpy_like_tests::draws_on_other_device", mutates_args=())
def _draws_on_other_device(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand((), generator=_OTHER_DEVICE)


@_draws_on_other_device.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_misspeculation_rolls_back_generators_of_all_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(), _OTHER_DEVICE))

    def program(x):
        y = _draws_on_other_device(x)
        kept = y[y > 0]
        return kept * 2 if kept.shape[0] > 1 else y - 1

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for value in (1.0, 1.0, -1.0, 1.0, -1.0):
        results = []
        for run in (program, fast):
            _OTHER_DEVICE.manual_seed(3)
            results.append((run(torch.full((2,), value)), torch.rand(2, generator=_OTHER_DEVICE)))
        assert_same(*results)


def test_generators_of_a_module_are_distinguished_by_identity():
    module = _DrawsAndBranches()
    module.forward = lambda x: x * module.own.random()
    fast = magpy.compile(lambda x: x * module.own.random(), backend="eager")
    for seed in (1, 1, 2, 3):
        module.own = random.Random(seed)
        assert torch.equal(fast(torch.ones(1)), torch.full((1,), random.Random(seed).random()))


def test_container_of_a_choice_is_guarded():
    values = [1.0, 2.0, 3.0]

    def program(x):
        return x * random.choice(values), random.sample(values, 2)

    fast = magpy.compile(program, backend="eager")
    for seed, found in enumerate(
        ([1.0, 2.0, 3.0],) * 2 + ([4.0, 5.0, 6.0],) * 2 + ([7.0, 8.0],) * 2
    ):
        values[:] = found
        random.seed(seed)
        expected = program(torch.ones(3))
        random.seed(seed)
        assert_same(fast(torch.ones(3)), expected)


def test_external_index_tuple_is_guarded_next_to_a_draw():
    compiled = magpy.compile(lambda x, indices: x[:, indices] * random.random(), backend="eager")
    x = torch.randn(2, 3)
    for indices in [(0, 1), (0, 1), (1, 2), (2, 0)]:
        random.seed(1)
        factor = random.random()
        random.seed(1)
        assert_same(compiled(x, indices), x[:, indices] * factor)
    assert magpy.cache_info(compiled).hits == 1


def _seeded_by(x, n):
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)
    return x * random.random() + np.random.rand() + torch.rand(3)


def _seeded_by_text(x, n):
    random.seed(f"run {n}")
    return x * random.random()


def _generators_of_its_own(x, n):
    numbers = np.random.default_rng(n).uniform(0, n), np.random.RandomState(n).randint(n)
    return x * random.Random(n).random(), numbers


def _bounded_by(x, n):
    return x * random.randint(2, n), np.random.uniform(n)


def _int_where_bounds_are_equal(x, n):
    return x + 1, random.triangular(2, n)


def _one_of(x, n):
    return x * random.choice([n, n + 1, 5])


def _error_caught_where_small(x, n):
    try:
        return x * random.randint(2, n)
    except ValueError:
        return x - 1


@pytest.mark.filterwarnings("ignore:magpy_like. a record of:UserWarning")
@pytest.mark.parametrize(
    "program",
    [
        *(_seeded_by, _seeded_by_text, _generators_of_its_own, _bounded_by, _one_of),
        *(_int_where_bounds_are_equal, _error_caught_where_small),
    ],
)
def test_one_record_serves_all_seeds_and_bounds_of_draws(program):
    info = magpy.cache_info(_compare_with_numbers(program, 5, 4, 6, 2, 7, 3, 1, 2, 5))
    assert (info.misses, info.records) == (2, 1)


def _compare_with_numbers(program, *numbers):
    """Like ``_compare``, with a number argument that varies between calls."""
    fast = magpy.compile(program, backend="eager")
    outcomes = []
    for run in (fast, program):
        _seed_all(0)
        results = []
        for n in numbers:
            try:
                results.append((run(torch.ones(3), n), _states()))
            except ValueError as error:
                results.append((str(error), _states()))
        outcomes.append(results)
    assert_same(*outcomes)
    return fast


def _draws_number_of_samples(x, n):
    return x + 1, random.sample(range(10), n)


def _draws_array_of_size(x, n):
    return x.sum() + torch.from_numpy(np.random.rand(n))


@pytest.mark.parametrize("program", [_draws_number_of_samples, _draws_array_of_size])
def test_another_number_of_draws_misses(program):
    fast = _compare_with_numbers(program, 3, 3, 4, 3, 5)
    assert magpy.cache_info(fast).misses == 3


def _filled(x):
    return torch.full((random.randint(-1, 2), 2), 2.0) + 1


def _taken(x):
    return x.narrow(0, random.randint(0, 1), random.randint(0, 3))


def _expanded(x):
    return x[:1].expand(random.randint(-1, 3)) * 2


def _repeated(x):
    return x.repeat(random.randint(0, 2)), x.view(random.randint(1, 3), -1)


def _power(x):
    return x ** random.choice([0.0, 1.0, 2.0, 0.5]), x * random.choice([0.0, 1.0, float("nan")])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("program", [_filled, _taken, _expanded, _repeated, _power])
def test_compiled_graph_does_not_specialize_drawn_numbers(program):
    fast = magpy.compile(program)
    for seed in range(10):
        found = []
        for run in (fast, program):
            random.seed(seed)
            try:
                found.append(run(torch.tensor([2.0, 3.0])))
            except RuntimeError:
                found.append("raised")
        assert_same(*found)
    info = magpy.cache_info(fast)
    # Before torch 2.13, AOTAutograd decides by an exponent whether a power is a product.
    uncompiled = info.uncompiled if program is _power and installed() < (2, 13) else 0
    assert info.hits + uncompiled >= 7
