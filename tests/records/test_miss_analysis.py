"""Generalisation at misses: values that varied are lifted, and no others."""

import warnings

import pytest
import torch

import magpy_like as magpy
from tests.monitor.symbolic.test_dynamic_shapes import sized
from tests.programs import Twins, one


def lifted(twins):
    return [record.lifted for record in magpy.api._dispatcher(twins.compiled).records]


def scaled(x, s):
    return x * s + x.shape[0]


def test_second_size_yields_a_record_for_all_sizes_of_the_dimension():
    twins = Twins(lambda: scaled)
    twins.call(sized((4, 3), 2), hit=False)
    assert lifted(twins) == [[]], "no value has varied yet"
    twins.call(sized((6, 3), 2), hit=False)
    assert lifted(twins) == [["args[0].size(0)"]], "the first record is covered by the second"
    for rows in (4, 9, 2):
        twins.call(sized((rows, 3), 2), hit=True)
    twins.call(sized((4, 5), 2), hit=False, why="the other dimension has not varied before")
    assert lifted(twins) == [["args[0].size(0)", "args[0].size(1)"]]
    twins.call(sized((7, 8), 2), hit=True)
    twins.call(sized((1, 8), 2), hit=False, why="1 is a special size")


def test_numbers_are_lifted_one_by_one():
    twins = Twins(lambda: lambda x, a, b: x * a + b)
    twins.call(sized((4,), 2, 3.0), hit=False)
    twins.call(sized((4,), 2, 4.0), hit=False)
    assert lifted(twins) == [["args[2]"]]
    twins.call(sized((4,), 2, 0.5), hit=True)
    twins.call(sized((4,), 3, 0.5), hit=False)
    twins.call(sized((4,), 7, 0.25), hit=True)
    twins.call(sized((4,), 7.0, 0.25), hit=False, why="a number of another type")


def test_numbers_and_sizes_inside_arguments_are_lifted():
    def program(batch):
        return batch["x"] * batch["scale"] + batch["parts"][1]

    def inputs(rows, scale, part):
        return lambda: ({"x": torch.ones(rows, 2), "scale": scale, "parts": [0, part]},)

    twins = Twins(lambda: program)
    twins.call(inputs(4, 2.0, 1), hit=False)
    twins.call(inputs(5, 3.0, 2), hit=False)
    twins.call(inputs(7, 0.5, 2), hit=True)


def test_comparison_of_a_lifted_number_keeps_the_outcome_not_the_value():
    def program(x, s):
        return x * s if s < 2.5 else x / s

    twins = Twins(lambda: program)
    twins.call(sized((4,), 0.5), hit=False)
    twins.call(sized((4,), 1.5), hit=False)
    twins.call(sized((4,), 2.25), hit=True)
    twins.call(sized((4,), 2.5), hit=False)
    twins.call(sized((4,), 8.5), hit=True)


def test_number_that_affects_no_size_keeps_sizes_static():
    def program(x, s):
        y = torch.cat([x, x]) * s
        return y.sum(0) / y.shape[0] if y.shape[0] > 6 else y.mean(0)

    twins = Twins(lambda: program)
    twins.call(sized((4, 3), 0.5), hit=False)
    twins.call(sized((5, 3), 1.5), hit=False)
    (record,) = magpy.api._dispatcher(twins.compiled).records
    assert not record.speculates, "the guard determines the branch"
    twins.call(sized((9, 3), 2.5), hit=True)
    twins.call(sized((3, 3), 2.5), hit=False)


def test_number_that_determines_sizes_is_not_constant():
    def program(x, step):
        y = torch.arange(0, 2, step)
        return x.sum() + y, y.shape[0] * 2, len(y) + x.shape[0]

    twins = Twins(lambda: program)
    for rows, step in ((4, 0.5), (5, 0.25), (6, 0.125), (7, 1.0)):
        twins.call(sized((rows,), step))
    assert magpy.cache_info(twins.compiled).hits >= 2


def test_dynamic_false_never_generalises():
    twins = Twins(lambda: scaled, dynamic=False)
    for rows, s in ((4, 2), (6, 2), (6, 3), (8, 4)):
        twins.call(sized((rows, 3), s), hit=False)
    assert lifted(twins) == [[]] * 4


def test_generalise_after_is_the_number_of_records_before_generalisation():
    twins = Twins(lambda: scaled, options={"generalise_after": 3})
    for rows in (4, 5, 6):
        twins.call(sized((rows, 3), 2), hit=False)
    assert lifted(twins) == [[]] * 3
    twins.call(sized((7, 3), 2), hit=False)
    assert lifted(twins) == [["args[0].size(0)"]], "it covers all of them"


def test_record_limit_is_an_option_and_warns_once_of_values_not_generalised():
    twins = Twins(lambda: lambda x, name: x * len(name), options={"record_limit": 2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(5):
            twins.call(sized((2,), "a" * i), hit=False)
    messages = [str(w.message) for w in caught if "magpy_like" in str(w.message)]
    assert len(messages) == 1 and "2 records" in messages[0] and "args[1]" in messages[0]


@pytest.mark.parametrize("options", [{"record_limit": 0}, {"generalise_after": "1"}])
def test_limits_are_positive_numbers(options):
    with pytest.raises(ValueError, match="positive int"):
        magpy.compile(scaled, options=options)


def test_backend_receives_its_options_without_the_limits():
    seen = []

    def backend(graph, inputs, *, options=None):
        seen.append(options)
        return graph

    magpy.compile(scaled, backend=backend, options={"record_limit": 3})(torch.ones(2), 2)
    magpy.compile(scaled, backend=lambda g, i, options: seen.append(options) or g,
                  options={"record_limit": 3, "fast": True})(torch.ones(2), 2)  # fmt: skip
    assert seen == [None, {"fast": True}]


def test_record_that_no_other_covers_is_kept():
    def program(x, mode):
        return x * 2 if mode == "double" else x - x.shape[0]

    twins = Twins(lambda: program)
    twins.call(sized((4,), "double"), hit=False)
    twins.call(sized((4,), "less"), hit=False)
    twins.call(sized((6,), "less"), hit=False)
    assert len(lifted(twins)) == 2
    twins.call(sized((4,), "double"), hit=True)


def test_record_of_another_layout_is_kept():
    twins = Twins(lambda: lambda x: x * 2)
    twins.call(lambda: (torch.ones(4, 6).t(),), hit=False)
    twins.call(lambda: (torch.ones(7, 4),), hit=False)
    twins.call(lambda: (torch.ones(4, 6).t(),), hit=True)
    twins.call(lambda: (torch.ones(5, 4),), hit=True)


def test_marked_dimension_is_dynamic_from_the_first_call():
    def inputs(rows, mark=False):
        def make():
            x = torch.ones(rows, 3)
            if mark:
                magpy.mark_dynamic(x, 0)
            return x, 2

        return make

    twins = Twins(lambda: scaled)
    twins.call(inputs(4, mark=True), hit=False)
    assert lifted(twins) == [["args[0].size(0)"]]
    twins.call(inputs(7), hit=True)
    twins.call(lambda: (torch.ones(4, 5), 2), hit=False, why="only one dimension is marked")


def test_marked_dimension_that_is_specialized_is_an_error():
    def program(x):
        return x * 2 if x.shape[0] == 4 else x

    x = torch.ones(4, 3)
    magpy.mark_dynamic(x, 0)
    fast = magpy.compile(program, backend="eager")
    with pytest.raises(
        magpy.DynamicDimensionError, match=r"dimension 0 of args\[0\].*4.*test_miss_analysis"
    ):
        fast(x)


def test_marked_dimension_of_size_one_is_an_error():
    x = torch.ones(1, 3)
    magpy.mark_dynamic(x, 0)
    with pytest.raises(magpy.DynamicDimensionError, match="0 and 1"):
        magpy.compile(lambda x: x * 2, backend="eager")(x)


def test_explanation_lists_lifted_and_generalised_values():
    fast = magpy.compile(scaled, backend="eager")
    fast(torch.ones(4, 3), 2)
    fast(torch.ones(5, 3), 3)
    report = magpy.explain(fast, torch.ones(4, 3), 2)
    assert report.lifted == ["args[0].size(0)", "args[1]"]
    assert report.generalised == ["args[0].size(0)", "args[1]"]
    assert "lifted: 2" in str(report)
    assert "generalised: 2\n  args[0].size(0)\n  args[1]" in str(report)
    assert magpy.explain(scaled, torch.ones(4, 3), 2).lifted == []


def test_varying_batch_sizes_of_a_model_need_one_more_record():
    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(1)
        ).eval()

    twins = Twins(make)
    for i, batch in enumerate((4, 6, 3, 9, 2)):
        twins.call(lambda b=batch: (torch.ones(b, 3, 8, 8),), hit=i > 1, backward=True)


def test_unused_text_with_a_size_in_it_is_not_specialized():
    def program(x):
        hint = "increase it."
        hint += f" It is {x.shape[0]} now."
        message = f"rows: {x.shape[0] + 1}. " + hint
        if x.dim() > 2:
            raise ValueError(message)
        return x * 2, message

    twins = Twins(lambda: program)
    for i, rows in enumerate((4, 5, 9, 2)):
        twins.call(sized((rows, 3)), hit=i > 1)


def test_general_record_replaces_the_record_for_one_number_in_an_attribute():
    class Settings:
        def __init__(self, longest):
            self.longest = longest

    def program(x, settings):
        return x * 2 if x.shape[0] < settings.longest else x

    twins = Twins(lambda: program)
    twins.call(lambda: (torch.ones(3), Settings(7)), hit=False)
    twins.call(lambda: (torch.ones(4), Settings(9)), hit=False)
    twins.call(lambda: (torch.ones(3), Settings(7)), hit=True)
    assert len(lifted(twins)) == 1, "the first record is covered"


def _selected(x):
    found = x[x > 0]
    with open("/dev/null", "w") as log:
        log.write("selected")
    return found * 2


def _selected_in_columns(x):
    found = x[:, x[0] > 0] + 1
    with open("/dev/null", "w") as log:
        log.write("selected")
    return found.sum(1)


def test_data_dependent_size_is_lifted_after_a_split_from_the_first_call():
    twins = Twins(lambda: _selected)
    twins.call(one(1.0, 2.0, -3.0, -4.0), hit=False)
    for values in ((1.0, 2.0, 3.0, -1.0), (1.0, 2.0, 3.0, 4.0), (1.0, 4.0, -1.0, -2.0)):
        twins.call(one(*values), hit=True)
    for values in ((1.0, -2.0, -3.0, -1.0), (-1.0, -2.0, -3.0, -4.0)):
        twins.call(one(*values), hit=False, why="0 and 1 are special sizes")


def test_data_dependent_size_is_lifted_while_another_dimension_is_marked():
    marked = torch.ones(3, 3)
    magpy.mark_dynamic(marked, 0)
    twins = Twins(lambda: _selected)
    twins.call(one(1.0, 2.0, -3.0, -4.0), hit=False)
    twins.call(one(1.0, 2.0, 3.0, -1.0), hit=True)


def test_data_dependent_size_of_another_dimension_is_lifted_once_it_varies():
    twins = Twins(lambda: _selected_in_columns)

    def columns(*values):
        return lambda: (torch.tensor([values, values]),)

    twins.call(columns(1.0, 2.0, 3.0, -1.0), hit=False)
    twins.call(columns(1.0, 2.0, -3.0, -1.0))
    twins.call(columns(1.0, 2.0, 3.0, 4.0), hit=True)


def test_size_lifted_before_a_split_is_lifted_after_it():
    def program(x):
        y = torch.cat([x, x]) + 1
        with open("/dev/null", "w") as log:
            log.write("joined")
        return y * x.shape[0], x.sum(0)

    twins = Twins(lambda: program)
    twins.call(sized((4, 3)), hit=False)
    twins.call(sized((6, 3)), hit=False)
    for rows in (9, 3, 12):
        twins.call(sized((rows, 3)), hit=True)
    assert magpy.cache_info(twins.compiled).misses == 2


def test_dynamic_false_lifts_no_size_after_a_split():
    twins = Twins(lambda: _selected, dynamic=False)
    twins.call(one(1.0, 2.0, -3.0, -4.0), hit=False)
    twins.call(one(1.0, 2.0, 3.0, -1.0), hit=False)


GENERATED = {
    "sum": lambda x: x.new_zeros(sum(n for n in x.shape)),
    "sum of attributes": lambda x: sum(t.shape[0] for t in (x, x.t())) * x,
    "sum from a number": lambda x: x * sum((n for n in x.shape), 0),
    "list": lambda x: x.new_zeros(list(n + 1 for n in x.shape)),  # noqa: C400
    "tuple": lambda x: (x.new_zeros(tuple(n for n in x.shape)), tuple(n - 1 for n in x.shape)),
    "nothing": lambda x: x.new_zeros(tuple(n for n in x.shape if n < 0)),
}


@pytest.mark.parametrize("kind", GENERATED)
def test_sizes_yielded_by_a_generator_are_lifted(kind):
    twins = Twins(lambda: GENERATED[kind])
    for i, rows in enumerate((4, 5, 9, 7)):
        twins.call(sized((rows, 3)), hit=i > 1)


def test_generator_raises_where_it_is_consumed():
    def program(x):
        made = []

        def sizes():
            for n in x.shape:
                made.append(n)
                if n == 3:
                    raise ValueError(f"{n} after {x.shape[0]}")
                yield n

        for use in (list, tuple, sum):
            try:
                use(sizes())
            except ValueError as error:
                made.append(str(error))
        return x + 1, made

    twins = Twins(lambda: program)
    for rows in (4, 5, 9, 7):
        twins.call(sized((rows, 3)))


class _Averages(torch.nn.Module):
    """Keeps running averages in a list and a dictionary, as losses weighted by frequency do."""

    def __init__(self):
        super().__init__()
        self.averages, self.last, self.momentum = [0.0] * 3, {"total": 1.0}, 0.75

    def forward(self, x):
        for i in range(len(self.averages)):
            share = (x > i).sum().item()
            self.averages[i] = self.momentum * self.averages[i] + (1 - self.momentum) * share
            x = x + self.averages[i]
        self.last["total"] = self.averages[0] + self.last["total"]
        return x * self.last["total"]


def test_numbers_overwritten_in_containers_do_not_miss():
    twins = Twins(_Averages)
    for i in range(6):
        twins.call(one(1.0 + i, -2.0, 3.0 / (i + 1)), hit=i > 1)
    twins.change(lambda module: setattr(module, "averages", [1.0, 2.0, 3.0]))
    twins.call(one(1.0, 2.0, 3.0))
    twins.change(lambda module: module.averages.append(0.5))
    for _ in range(3):
        twins.call(one(1.0, 2.0, 3.0))
    twins.change(lambda module: module.averages.__setitem__(1, 9))
    for _ in range(2):
        twins.call(one(1.0, 2.0, 3.0))


def test_element_only_read_is_guarded_next_to_overwritten_ones():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.numbers = [1.0, 2.0, 4.0]

        def forward(self, x):
            self.numbers[0] = self.numbers[0] * 0.5
            self.numbers[-2] = self.numbers[0] + 1
            return x * self.numbers[2] + self.numbers[0], len(self.numbers)

    twins = Twins(Scaled)
    for i in range(4):
        twins.call(one(1.0, 2.0), hit=i > 1)
    twins.change(lambda module: module.numbers.__setitem__(2, 8.0))
    twins.call(one(1.0, 2.0), hit=False)
    twins.change(lambda module: module.numbers.append(1.0))
    twins.call(one(1.0, 2.0), hit=False)


class _KeepsItsLast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.register = None, []

    def forward(self, x):
        y = x * 2
        self.last = y  # the module checks whether it is a parameter
        isinstance(y, torch.nn.Parameter)
        return getattr(y, "_marked", 0), getattr(y, "size")(0), getattr(y, "shape"), y  # noqa: B009


def test_module_that_keeps_a_result_does_not_specialize_its_sizes():
    twins = Twins(_KeepsItsLast)
    for i, rows in enumerate((4, 5, 9, 7)):
        twins.call(sized((rows, 3)), hit=i > 1)
    twins.call(sized((4, 2)), hit=False)


def _alternate(compiled, sizes, others):
    """Calls with each of ``others`` in turn."""
    for i, size in enumerate(sizes):
        x = torch.full((size, 3), 0.5)
        other = others[i % len(others)]
        with torch.set_grad_enabled(other is not others[0]):
            yield compiled(x, other), other


@pytest.mark.parametrize(
    "others",
    [(lambda x: x + 1, lambda x: x * 2), (torch.sin, torch.cos), (0, 1)],
    ids=["functions", "builtins", "modes"],
)
def test_record_for_all_sizes_keeps_records_for_other_objects_and_modes(others):
    def program(x, other):
        return other(x) * 2 if callable(other) else x * 2

    fast = magpy.compile(program, backend="eager")
    for result, other in _alternate(fast, range(3, 13), others):
        size = result.shape[0]
        assert torch.equal(result, program(torch.full((size, 3), 0.5), other))
    assert magpy.cache_info(fast).hits == 7, (
        "misses: the first call, then one for all sizes of each object"
    )
