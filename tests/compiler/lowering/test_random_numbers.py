"""Compiled random operators draw eager's numbers and advance the generators as eager does."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.compiler.compiler_errors import MagpyWarning
from tests.seeding import seed


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode prevents capture."""


DRAWS = {
    "normal_": lambda x: torch.empty_like(x).normal_(1, 0.1),
    "normal": lambda x: torch.normal(x, 0.5),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 2),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.4),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(),
    "random_": lambda x: torch.empty_like(x).random_(3, 90),
    "random_ of a transposed tensor": lambda x: (x.t() + 1).random_(3, 90),
    "random_ of integers": lambda x: torch.empty_like(x, dtype=torch.int64).random_(
        -(2**40), 2**40
    ),
    "randperm": lambda x: torch.randperm(70, device=x.device),
    "randint_like": lambda x: torch.randint_like(x, 7),
    "randn_like": lambda x: torch.randn_like(x),
    "rand of half": lambda x: torch.rand(33, dtype=torch.float16, device=x.device),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 3),
    "poisson": lambda x: torch.poisson(x.exp()),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu of a transposed tensor": lambda x: F.rrelu(x.t(), training=True) * 2,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature dropout": lambda x: F.dropout1d(x[None], 0.3, training=True),
    "dropout of a transposed tensor": lambda x: F.dropout(x.t(), 0.4),
    "dropout of a transposed intermediate": lambda x: F.dropout(
        F.layer_norm((x * 2).t(), (6,)).t().tanh(), 0.4
    ),
    "dropout of an expanded tensor": lambda x: F.dropout(x[:1].expand(6, 10), 0.4),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout of all in place": lambda x: F.dropout(x + 1, 1.0, inplace=True),
    "attention without probabilities": lambda x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=1.0
    ),
    "unused draw": lambda x: (x + 1, torch.empty_like(x).normal_())[0],
}


@pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")
@pytest.mark.parametrize("name", DRAWS)
def test_random_operators_draw_eager_numbers(name, device):
    x = torch.randn(6, 10, device=device)
    generator = torch.random if device.type == "cpu" else torch.cuda
    fast = magpy.compile(DRAWS[name], fullgraph=True)
    fast(x)
    drawn = []
    for call in (fast, DRAWS[name]):
        generator.manual_seed(5)
        drawn.append((call(x), generator.get_rng_state()))
    torch.testing.assert_close(*drawn)
    assert drawn[0][0].stride() == drawn[1][0].stride()
    assert magpy.cache_info(fast).hits == 1


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("probability", [0.5, "probabilities"])
def test_draws_into_transposed_memory_run_in_eager(probability, gradients, device):
    """Torch's functionalized draw is a new row-major tensor, so the graph runs through ATen."""

    def program(x):
        p = probability if probability != "probabilities" else x.detach().sigmoid()
        return torch.empty_like(x).bernoulli_(p) * x

    x = torch.randn(6, 10, device=device).t().requires_grad_(gradients)
    generator = torch.random if device.type == "cpu" else torch.cuda
    fast = magpy.compile(program, fullgraph=True)
    with pytest.warns(MagpyWarning, match="eager may draw random numbers in another order"):
        fast(x)
    drawn = []
    for call in (fast, program):
        generator.manual_seed(5)
        drawn.append((call(x), generator.get_rng_state()))
    torch.testing.assert_close(*drawn)
    assert drawn[0][0].stride() == drawn[1][0].stride()
    assert magpy.cache_info(fast).uncompiled == 1


@pytest.mark.parametrize(
    "draw", [lambda s: torch.normal(0.0, s), lambda s: torch.normal(s, s)], ids=["number", "tensor"]
)
def test_negative_standard_deviation_raises(draw):
    fast = magpy.compile(lambda s: draw(s) + 1, fullgraph=True)
    for _ in range(2):
        fast(torch.ones(3))
    assert magpy.cache_info(fast).hits == 1
    with pytest.raises(RuntimeError, match="std >= 0"):
        fast(-torch.ones(3))


# --- draws into given memory ----------------------------------------------------------------------

LAYOUTS = {
    "row-major": lambda dtype: torch.zeros(6, 4, dtype=dtype),
    "transposed": lambda dtype: torch.zeros(4, 6, dtype=dtype).t(),
    "with gaps": lambda dtype: torch.zeros(12, 8, dtype=dtype)[::2, ::2],
}


def ranks():
    return torch.linspace(0, 1, 24).view(6, 4)


DRAWS_INTO = {
    "rand": lambda out: torch.rand(6, 4, out=out),
    "randn": lambda out: torch.randn(6, 4, out=out),
    "randint": lambda out: torch.randint(0, 9, (6, 4), out=out),
    "normal": lambda out: torch.normal(ranks(), ranks(), out=out),
    "normal of numbers": lambda out: torch.normal(0.0, 1.0, (6, 4), out=out),
    "bernoulli": lambda out: torch.bernoulli(ranks(), out=out),
    "normal_": lambda out: out.normal_(),
    "uniform_": lambda out: out.uniform_(),
    "random_": lambda out: out.random_(0, 9),
    "bernoulli_": lambda out: out.bernoulli_(0.3),
}


@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("draw", DRAWS_INTO.values(), ids=list(DRAWS_INTO))
def test_draws_into_given_memory_are_those_of_eager(draw, layout, dtype, is_argument):
    def program(out):
        out = layout(dtype) if out is None else out
        return draw(out), out, out + 0

    fast = magpy.compile(program)
    for _ in range(3):
        seen = []
        for call in (program, fast):
            seed(0)
            out = layout(dtype) if is_argument else None
            results = call(out)
            seen.append([(t.stride(), t) for t in (*results, *([out] if is_argument else []))])
        for (stride, expected), (found, actual) in zip(*seen, strict=True):
            assert found == stride
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("rows", [2, 3])
def test_out_of_multinomial_keeps_its_strides_or_is_resized(rows):
    def program(weights):
        out = torch.zeros(3, rows, dtype=torch.long).t()
        torch.multinomial(weights, 3, out=out)
        return out, out + 0

    fast = magpy.compile(program)
    for _ in range(3):
        seen = []
        for call in (program, fast):
            seed(0)
            seen.append([(t.stride(), t.tolist()) for t in call(ranks()[3:])])
        assert seen[0] == seen[1]


def test_draws_into_row_major_memory_are_compiled():
    def program(x):
        out = torch.zeros(3, 4)
        torch.randn(3, 4, out=out)
        return out + x

    fast = magpy.compile(program, options={"strict": True})
    for _ in range(2):
        fast(torch.ones(4))
    assert magpy.cache_info(fast).hits == 1
