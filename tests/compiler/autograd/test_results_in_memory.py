"""Results of compiled graphs are to autograd what eager mode's are, whatever memory they lie in."""

import pytest
import torch

import magpy_like as magpy


def pair(x):
    return torch.complex(x, x * 2)


def polar(x):
    return torch.polar(x, x * 2)


def cast(x):
    return torch.complex(x, x * 2).to(torch.complex128)


def written_part(x):
    result = torch.complex(x, x * 2)
    result.real.mul_(x)
    return result


def part(x):
    return torch.complex(x, x * 2).imag


def part_without_gradients(x):
    result = torch.complex(x, x * 2)
    with torch.no_grad():
        return result.real


def without_gradients(x):
    with torch.no_grad():
        return torch.complex(x, x * 2)


def of_detached(x):
    return torch.complex(x.detach(), x.detach() * 2)


def scale(result, w):
    result.mul_(w.sum())


def scale_without_gradients(result, w):
    with torch.no_grad():
        result.mul_(2)


def scale_a_part(result, w):
    (result.real if result.is_complex() else result).mul_(w.sum())


def observe(call, write, w):
    w = w.clone().requires_grad_()
    result = call(w * 1)
    found = [result.requires_grad]
    try:
        write(result, w)
        if result.requires_grad:
            parts = torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
            parts.double().square().sum().backward()
    except RuntimeError as error:
        found.append(str(error)[:30])
    return [*found, result.detach().resolve_conj(), w.grad, result._version]


@pytest.mark.parametrize("write", [scale, scale_without_gradients, scale_a_part])
@pytest.mark.parametrize(
    "program",
    [
        pair, polar, cast, written_part, part, part_without_gradients,
        without_gradients, of_detached,
    ],
)  # fmt: skip
def test_a_caller_writes_to_a_complex_result_as_in_eager_mode(program, write):
    w = torch.arange(1.0, 13).reshape(3, 4) / 10
    expected = observe(program, write, w)
    compiled = magpy.compile(program, backend="magpy")
    for _ in range(2):
        actual = observe(compiled, write, w)
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b)
            else:
                assert a == b


def window(x):
    return x.exp().view(-1)


def row(x):
    return x.exp()[0]


def part_of_an_exponential(x):
    return torch.complex(x, x * 2).exp().real


def part_of_two_results(x):
    result = torch.polar(x, x * 2)
    return result.abs(), result.real


def detached_window(x):
    result = x.exp()
    return result.sin(), result.detach().view(-1)


def window_of_a_written_argument(x):
    """AOTAutograd's own node runs such a graph."""
    x.mul_(2)
    return x.exp().view(-1)


@pytest.mark.filterwarnings("ignore:magpy compiler. a graph runs through ATen")
@pytest.mark.parametrize(
    "program",
    [
        window, row, part_of_an_exponential, part_of_two_results, detached_window,
        window_of_a_written_argument,
    ],
)  # fmt: skip
@pytest.mark.parametrize("records", [True, False], ids=["with gradients", "without"])
def test_a_backward_pass_refuses_saved_memory_that_the_caller_wrote_to_by_a_result(
    program, records
):
    compiled = magpy.compile(program, backend="magpy")
    for call in (program, compiled, compiled):
        x = torch.arange(1.0, 13).reshape(3, 4).requires_grad_() * 0.1
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        with torch.set_grad_enabled(records):
            results[-1].mul_(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[0].sum().backward()


UNSAFE_SPLITS = {
    "unsafe_split": lambda x, n: x.unsafe_split(n),
    "unsafe_chunk": lambda x, n: x.unsafe_chunk(1),
    "unsafe_split_with_sizes": lambda x, n: x.unsafe_split_with_sizes([n]),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("split", UNSAFE_SPLITS.values(), ids=list(UNSAFE_SPLITS))
def test_result_in_the_whole_memory_of_an_argument_is_another_object(split, requires_grad):
    """It counts its writes apart from the argument."""

    def program(x):
        return split(x, 5)

    fast = magpy.compile(program)
    for _ in range(3):
        seen = []
        for call in (program, fast):
            x = torch.arange(5.0, requires_grad=requires_grad)
            (piece,) = call(x)
            with torch.no_grad():
                piece.add_(1)
            seen.append((piece is x, piece._is_view(), piece._version, x._version, piece.tolist()))
        assert seen[0] == seen[1]


FILLED = {
    "zeroed": lambda view: view.zero_(),
    "filled": lambda view: view.fill_(2),
    "filled by subscript": lambda view: view.__setitem__(slice(None), 3),
    "reshaped": lambda view: view.squeeze_().zero_(),
    "computed": lambda view: view.mul_(2),
}


@pytest.mark.parametrize("size", [(1, 3), (3, 1), (4, 3)])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("fill", FILLED)
def test_view_that_is_filled_with_a_constant_stays_a_view_of_the_argument(fill, gradients, size):
    def program(x):
        view = x.t().reshape(-1)
        FILLED[fill](view)
        return view

    fast = magpy.compile(program)
    for _ in range(3):
        found = []
        for run in (program, fast):
            x = torch.ones(size)
            with torch.set_grad_enabled(gradients):
                view = run(x)
            found.append((x.tolist(), view.tolist(), x._version, view._version))
            shares = view.untyped_storage()._cdata == x.untyped_storage()._cdata
            assert shares is (1 in size)
        assert found[0] == found[1]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch._foreach_add([x], 1)[0],
        lambda x: torch._foreach_exp([x, x])[1],
        lambda x: x.sort(0)[0],
        lambda x: torch.var_mean(x, 1)[1],
    ],
)
def test_equal_results_of_operators_with_several_have_memory_of_their_own(make, requires_grad):
    fast = magpy.compile(lambda x: (make(x), make(x)))
    for _ in range(3):
        first, second = fast(torch.randn(4, 4, requires_grad=requires_grad))
        before = second.detach().clone()
        first.detach().zero_()
        assert torch.equal(second, before)
