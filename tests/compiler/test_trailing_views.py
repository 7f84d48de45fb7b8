"""Results that are views know what eager mode's views know: of what, made how, and written to."""

import importlib
import operator

import pytest
import torch
from torch import fx

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.trailing_views import take_trailing_views
from magpy_like.torch_compat import pytree
from tests.compiler.programs import attempt

module = importlib.import_module("magpy_like.compiler.compile_fx")

KINDS = ("leaf", "computed", "without gradient")


def make(kind, *sizes):
    x = torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)
    x.requires_grad_(kind != "without gradient")
    return x * 1 if kind == "computed" else x


def without_gradients(function):
    return torch.no_grad()(function)


def in_inference_mode(x):
    with torch.inference_mode():
        return x[0], x.t().unbind(0)[1]


def in_both_modes(x):
    doubled = x * 2
    with torch.no_grad():
        rows = doubled.unbind(0)
    return doubled, rows[0], doubled.unbind(0)[1], doubled[0]


def after_a_write(x):
    doubled = x * 2
    doubled.mul_(3)
    turned = doubled.t()
    turned.add_(1)
    return turned.chunk(2)[0], doubled


def after_a_write_that_saves_its_result(x):
    doubled = x * 2
    doubled.mul_(3)
    doubled.exp_()
    return doubled.unbind(1)[1]


def of_a_written_argument(x):
    with torch.no_grad():
        x.mul_(2)
    return x.unbind(0)[0]


def in_structures(x):
    doubled = x * 2
    first, second = doubled.unbind(0)
    return {"a": [first, doubled], "b": (x, second, 3, None, first)}


def with_gradients_inside(x):
    with torch.no_grad(), torch.enable_grad():
        return x.unbind(0)[0], x[0]


def after_writes_to_base_and_views(x):
    doubled = x * 2
    first, turned = doubled[0], doubled.t()
    doubled += 1
    first.mul_(3)
    turned[0] = 5
    torch.ops.aten.add_.Tensor(turned, 1)
    return doubled, turned, first


def reshaped_before_writes(x):
    doubled = x * 2
    flat, ravelled, part = doubled.reshape(-1), doubled[1:].ravel(), doubled.flatten()[1:3]
    doubled.add_(1)
    return flat, ravelled, part, doubled


def reshaped_and_written(x):
    doubled = x * 2
    view, copy = doubled.reshape(-1), doubled.t().reshape(-1)
    copy.mul_(2).mul_(3)
    view.add_(1)
    return view, copy, view[1:]


def reshaped_without_gradient_before_writes(x):
    doubled = x.detach() * 2
    flat = doubled.reshape(-1)
    doubled.add_(1)
    return flat, doubled, x * 3


def reshaped_indices_before_writes(x):
    values, indices = x.detach().sort(descending=True)
    results = values.flatten(), indices.ravel(), values, indices
    values.add_(1)
    indices.add_(1)
    return results


@without_gradients
def without_gradients_outside(x):
    with torch.enable_grad():
        return x[0]


PROGRAMS = {
    "unbind": lambda x: x.unbind(1)[1],
    "iteration": lambda x: [*x],
    "chunk": lambda x: x.chunk(3, 1)[1],
    "split": lambda x: x.split(1, 1)[1],
    "split_with_sizes": lambda x: torch.split_with_sizes(x, [1, 2], 1)[1],
    "tensor_split": lambda x: x.tensor_split((1, 2), 1)[1],
    "hsplit": lambda x: x.hsplit(3)[1],
    "by keywords": lambda x: torch.unbind(input=x, dim=1)[1],
    "view of several views": lambda x: x.unbind(1)[1].unsqueeze(0),
    "several views of a view": lambda x: x.T.unbind(1)[0],
    "detached": lambda x: x.unbind(1)[1].detach(),
    "sizes of another tensor": lambda x: (x * 2).unbind(0)[0].view_as((x + 1)[0].sin()),
    "intermediate": lambda x: (x * 2).unbind(1)[1],
    "beside its base": lambda x: (lambda b: (b, b.unbind(1)[1], b.t()))(x * 2),
    "views of one base": lambda x: (lambda b: (b[0], b.t(), b.view(-1)[1:]))(x * 2),
    "one view": lambda x: ((x * 2)[0], x + 1),
    "converted": lambda x: (lambda b: (b[0], b[1]))((x * 2).double()),
    "view of another dtype": lambda x: (lambda b: (b, b.view(torch.int32)))((x * 2).detach()),
    "strided": lambda x: (lambda b: (b[1].as_strided((2,), (1,)), b, x.as_strided((2,), (2,))))(
        x * 2
    ),
    "copies": lambda x: (lambda b: (b, b.t().reshape(-1), b[[0, 1]], b.t().contiguous()))(x * 2),
    "data": lambda x: (lambda b: (b, b.data, x.data))(x * 2),
    "of arguments": lambda x: (x * 2, x.t(), x[0], x.detach()[1:]),
    "unsafe_chunk": lambda x: x.unsafe_chunk(3, 1)[1],
    "no_grad": without_gradients(lambda x: x[0]),
    "several views under no_grad": without_gradients(lambda x: x.unbind(1)[1]),
    "item of several results": without_gradients(lambda x: x.max(0)[0][1:]),
    "no views under no_grad": without_gradients(lambda x: (x[[0, 1]], x * 2, x.sum())),
    **{
        function.__name__: function
        for function in (
            in_inference_mode, in_both_modes, after_a_write, after_a_write_that_saves_its_result,
            of_a_written_argument, in_structures, with_gradients_inside, without_gradients_outside,
            after_writes_to_base_and_views, reshaped_before_writes, reshaped_and_written,
            reshaped_without_gradient_before_writes, reshaped_indices_before_writes,
        )
    },
}  # fmt: skip


def observe(function, x):
    """What a caller sees of the results: identities, views, gradients, and writes to each."""
    tree = function(x)
    results = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    seen = [str(pytree.tree_flatten(tree)[1]), [[a is b for b in (x, *results)] for a in results]]
    for result in results:
        seen += [result.detach().tolist(), result.stride(), result.requires_grad]
        seen.append(result._base is x)
        seen.append(None if result.is_inference() else result._version)
    sources = [r for r in results if r.requires_grad and attempt(lambda r=r: r.grad_fn)]
    sources = [r for r in sources if not isinstance(attempt(lambda r=r: r.grad_fn), str)]
    if sources:

        def gradients():
            total = sum((r * r).sum() * k for k, r in enumerate(sources, 1))
            return torch.autograd.grad(total, x)[0].tolist()

        seen.append(attempt(gradients))
    for result in results:
        versions = [r._version for r in results if not r.is_inference()]
        seen.append(attempt(lambda r=result: r.add_(1).detach().tolist()))
        after = [r._version for r in results if not r.is_inference()]
        seen.append([now - before for now, before in zip(after, versions, strict=True)])
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_results_are_the_views_of_eager_mode(program, kind):
    fast = magpy.compile(program)
    for _ in range(3):
        assert observe(fast, make(kind, 2, 3)) == observe(program, make(kind, 2, 3))
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "view",
    [
        torch.conj, lambda c: c.conj()[1:], lambda c: c.conj().t(), lambda c: c.conj().conj(),
        lambda c: c.H, lambda c: c.mH, lambda c: c.real, lambda c: c.imag, lambda c: c.conj().imag,
        torch.view_as_real, lambda c: torch.view_as_complex(torch.view_as_real(c)),
    ],
)  # fmt: skip
def test_views_of_complex_tensors_share_memory_and_versions(view, kind):
    for program in (view, lambda c: (view(c), c * 2), lambda c: (lambda b: (view(b), b))(c * 2)):
        fast = magpy.compile(program)
        seen = []
        for call in (program, fast, fast):
            c = torch.complex(make(kind, 2, 3), make(kind, 2, 3)).detach()
            c.requires_grad_(kind != "without gradient")
            tensors = [*pytree.tree_leaves(call(c * 1 if kind == "computed" else c)), c]
            with torch.no_grad():
                for tensor in tensors:
                    tensor.mul_(2)
            bits = [(t.is_conj(), t.is_neg(), t.requires_grad, t._version) for t in tensors]
            seen.append((bits, [t.tolist() for t in tensors]))
        assert seen[1:] == seen[:1] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_views_have_the_sizes_of_the_call(kind):
    def program(x):
        doubled = x * 2
        last = doubled.split(x.shape[1] - 1, 1)[1]
        return x.split([1, x.shape[1] - 1], 1)[1], last, doubled.narrow(1, 0, x.shape[1] // 2)

    fast = magpy.compile(program)
    for columns in (3, 3, 4, 5, 7, 8):
        assert observe(fast, make(kind, 2, columns)) == observe(program, make(kind, 2, columns))


@pytest.mark.parametrize("kind", ("leaf", "computed"))
def test_saved_view_whose_base_was_written_to_has_no_gradient(kind):
    fast = magpy.compile(lambda x: (lambda b: (b, b.unbind(1)[1]))(x * 2))
    for _ in range(2):
        base, column = fast(make(kind, 2, 3))
        product = column.square().sum()
        with torch.no_grad():
            base.mul_(2)
        with pytest.raises(RuntimeError, match="modified"):
            product.backward()


def test_views_of_intermediates_have_second_derivatives():
    def derivatives(function):
        x = make("leaf", 2, 3)
        base, row, turned = function(x)
        total = (base.sum() + row.square().sum()) * turned[0, 1]
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return first.tolist(), torch.autograd.grad(first.square().sum(), x)[0].tolist()

    def program(x):
        cubed = x * x * x
        return cubed, cubed.unbind(0)[1], cubed.t()

    fast = magpy.compile(program)
    for _ in range(2):
        assert derivatives(fast) == derivatives(program)


@pytest.mark.parametrize("mode", (torch.enable_grad, torch.no_grad))
@pytest.mark.parametrize(
    "program",
    (
        lambda x: (lambda b: (b, b[0]))(x * 2),
        lambda x: (lambda b: (b.t(), b[0]))(x * 2),
        lambda x: (lambda b: (b, b.unbind(0)[0]))(x * 2),
    ),
)
def test_saved_result_whose_memory_another_result_writes_to_has_no_gradient(program, mode):
    fast = magpy.compile(program)
    for columns in (3, 3, 4, 5):
        with mode():
            saved, written = fast(make("without gradient", 2, columns))
        weight = torch.ones((), requires_grad=True)
        total = (saved * weight).sum()
        written.add_(1)
        with pytest.raises(RuntimeError, match="modified"):
            total.backward()


def test_views_of_an_argument_see_later_writes_to_it():
    def program(x):
        first, turned = x[0], x.t()
        x.add_(1)
        turned.mul_(2)
        return first, x * 2, turned

    fast = magpy.compile(program)
    for columns in (3, 3, 4, 5):
        x, y = (make("without gradient", 2, columns) for _ in range(2))
        assert observe(fast, x) == observe(program, y)
        assert (x.tolist(), x._version) == (y.tolist(), y._version)


def test_copies_do_not_see_later_writes():
    def program(x):
        doubled = x * 2
        copied, rows = doubled.t().reshape(-1), doubled.t().flatten()[1:]
        doubled.add_(1)
        return doubled, copied, rows, doubled.t().reshape(-1)

    fast = magpy.compile(program)
    for columns in (3, 3, 4, 5):
        for kind in KINDS:
            x = make(kind, 2, columns)
            assert observe(fast, x) == observe(program, make(kind, 2, columns))


def test_results_of_a_function_written_in_python_are_not_taken_for_subscripts():
    def pooled(x):
        both = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        return both[0], both[1]

    graph = fx.Graph()
    both = graph.call_function(
        torch.nn.functional.max_pool2d, (graph.placeholder("x"), 2), {"return_indices": True}
    )
    graph.output(tuple(graph.call_function(operator.getitem, (both, k)) for k in range(2)))
    assert take_trailing_views(fx.GraphModule({}, graph), [make("leaf", 1, 4, 4)]) is None
    fast = magpy.compile(pooled)
    for _ in range(2):
        assert observe(fast, make("leaf", 1, 4, 4)) == observe(pooled, make("leaf", 1, 4, 4))


@pytest.mark.parametrize(
    "write", (lambda x, dim: x.unsqueeze_(dim), torch.ops.aten.unsqueeze_.default)
)
def test_memory_of_which_sizes_change_and_views_are_returned_is_left_to_eager_mode(write):
    def reshaped(x):
        doubled = x * 2
        first = doubled[0]
        write(doubled, 0)
        return doubled, first

    with pytest.raises(Unsupported, match="changes the sizes"):
        take_trailing_views(capture(reshaped), [make("without gradient", 2, 3)])
    fast = magpy.compile(reshaped)
    with pytest.warns(magpy.MagpyWarning, match="changes the sizes"):
        fast(make("without gradient", 2, 3))
    x = make("without gradient", 2, 3)
    assert observe(fast, x) == observe(reshaped, make("without gradient", 2, 3))
    fast = magpy.compile(lambda x: (lambda b: (b, b.unsqueeze_(0)[0]))(x * 2))
    doubled, first = fast(x)
    first.add_(1)
    assert doubled._version == 2


def capture(function):
    return fx.symbolic_trace(function)


def test_other_views_stay_in_the_graph():
    for function in (
        lambda x: ((x * 2)[0], x + 1),
        lambda x: (lambda first: (first, first))((x * 2)[0]),
        lambda x: (lambda b: b[0] * b[1])(x.unbind(0)),
        lambda x: x.unbind(0)[0].contiguous(),
    ):
        assert take_trailing_views(capture(function), [make("leaf", 2, 3)]) is None


def test_one_view_of_an_intermediate_without_gradients_stays_in_the_graph():
    gm = capture(lambda x: ((x * 2).unbind(0)[0], x * 3))
    assert take_trailing_views(gm, [make("without gradient", 2, 3)]) is None
    with torch.no_grad():
        assert take_trailing_views(gm, [make("leaf", 2, 3)]) is None


def test_views_of_intermediates_without_version_counters_stay_in_the_graph():
    gm = capture(lambda x: (lambda b: (b, b[0]))(x * 2))
    with torch.inference_mode():
        assert take_trailing_views(gm, [make("without gradient", 2, 3)]) is None
    assert take_trailing_views(gm, [make("without gradient", 2, 3)]) is not None


def test_graph_returns_each_base_once_and_no_argument():
    gm = capture(lambda x: (x * 2, x.unbind(0)[0]))
    assert take_trailing_views(gm, [make("leaf", 2, 3)]) is not None
    assert [node.name for node in gm.graph.output_node().all_input_nodes] == ["mul"]
    gm = capture(lambda x: (lambda b: [b[0].t(), b[1]])((x * 2).chunk(2)))
    assert take_trailing_views(gm, [make("leaf", 2, 3)]) is not None
    assert [node.name for node in gm.graph.output_node().all_input_nodes] == ["mul"]


def test_graph_of_views_alone_is_not_traced(monkeypatch):
    monkeypatch.setattr(module, "aot_compile", None)
    x = make("computed", 2, 3)
    for function in (lambda x: x.unbind(0), lambda x: [x.t().chunk(3)[1], x, 3]):
        call = compile_fx(capture(function), [x], options={"strict": True})
        assert observe(lambda x, call=call: [*call(x)], x) == observe(
            lambda x, function=function: [*function(x)], make("computed", 2, 3)
        )


def test_base_that_is_written_to_after_the_view_is_left_to_eager_mode():
    def written(x):
        doubled = x * 2
        row = doubled.unbind(0)[0]
        doubled.mul_(2)
        return row

    with pytest.raises(Unsupported, match="writes to the memory of a view"):
        take_trailing_views(capture(written), [make("leaf", 2, 3)])
    assert take_trailing_views(capture(written), [make("without gradient", 2, 3)]) is None
    fast = magpy.compile(written)
    with pytest.warns(magpy.MagpyWarning, match="writes to the memory of a view"):
        fast(make("leaf", 2, 3))
    row = fast(make("leaf", 2, 3))
    with pytest.raises(RuntimeError, match="modified inplace"):
        row.sum()


def unrecorded_before_a_write(x):
    view = x.t()
    x.mul_(2)
    return view


def unrecorded_and_written(x):
    view = x.view(-1)
    view[1:].add_(1)
    return view, x * 2


def unrecorded_after_a_write(x):
    x.mul_(2)
    return x.t()


def detached_before_a_write(x):
    view = x.detach().t()
    x.mul_(2)
    return view


def state(view):
    """What autograd tells about a view, or refuses to tell."""
    found = [view.requires_grad]
    for read in (lambda: view.is_leaf, lambda: view.grad_fn is None, lambda: view.sum().backward()):
        try:
            found.append(read())
        except RuntimeError as error:
            found.append(str(error))
    return found


@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("caller_records", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "program",
    [
        unrecorded_before_a_write,
        unrecorded_and_written,
        unrecorded_after_a_write,
        detached_before_a_write,
    ],
)
def test_view_made_without_gradients_of_memory_written_to_has_none(program, kind, caller_records):
    program = without_gradients(program)
    fast = magpy.compile(program)
    for _ in range(3):
        found = []
        for call in (program, fast):
            x = make(kind, 2, 3)
            with torch.set_grad_enabled(caller_records):
                results = call(x)
            results = results if isinstance(results, tuple) else (results,)
            found.append([state(result) for result in results])
        assert found[0] == found[1]


def test_writes_to_other_memory_after_the_view_do_not_matter():
    def counting(x, steps):
        row = (x * 2).unbind(0)[0]
        steps.add_(1)
        return row, x.chunk(2)[0]

    fast = magpy.compile(counting)
    for k in range(1, 4):
        steps = torch.zeros(())
        for row in fast(make("leaf", 2, 3), steps):
            with pytest.raises(RuntimeError, match="a view and is being modified inplace"):
                row.add_(1)
        assert steps == 1, k
