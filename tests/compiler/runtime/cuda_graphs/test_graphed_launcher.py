"""The launcher that captures and replays, on a stand-in for CUDA graphs: see ``stand_in``."""

import gc
import signal

import pytest
import torch

from magpy_like.compile_modes import CudaGraphs
from magpy_like.compiler.runtime.cuda_graphs import (
    capture_pool,
    capture_site,
    captured_graph,
    graphed_launcher,
    held_graphs,
)
from magpy_like.compiler.runtime.cuda_graphs.capture_reports import (
    FORBIDDEN,
    CaptureReport,
    report_pieces,
)
from tests.compare import assert_same
from tests.compiler.runtime.cuda_graphs import stand_in
from tests.compiler.runtime.cuda_graphs.stand_in import StandInMemory, launcher

pytestmark = pytest.mark.cpu

UNTIL_CAPTURE = capture_site.MIN_CALLS + 1


@pytest.fixture
def gpu(monkeypatch):
    return stand_in.install(monkeypatch)


def scaled(x, y):
    return (x * 2 + y,)


def call(launch, *args):
    passed = [*args]
    results = launch(passed)
    assert passed == [], "a launcher empties the list of its arguments"
    return results


def warm(launch, *args, calls=UNTIL_CAPTURE):
    for _ in range(calls):
        call(launch, *args)


def pair():
    return torch.randn(3, 4), torch.randn(4)


# --- results -------------------------------------------------------------------------------------


def test_first_calls_launch_kernels_and_all_later_calls_replay(gpu):
    launch, (x, y) = launcher(scaled), pair()
    for k in range(UNTIL_CAPTURE + 5):
        x.copy_(torch.randn(3, 4))
        assert_same(call(launch, x, y), scaled(x, y))
        assert len(gpu.replays) == max(0, k - capture_site.MIN_CALLS + 1)
    assert len(set(gpu.replays)) == 1


def test_kept_results_are_not_overwritten(gpu):
    launch, (x, y) = launcher(scaled), pair()
    kept, expected = [], []
    for _ in range(12):
        x.copy_(torch.randn(3, 4))
        kept.append(call(launch, x, y))
        expected.append(scaled(x, y))
    assert_same(kept, expected)
    assert gpu.replays


def test_results_that_share_memory_share_it_after_each_replay(gpu):
    def views(x):
        y = x.sin()
        return y, y[1:], y.view(-1).view(torch.int32), x

    launch, x = launcher(views), torch.randn(4, 4)
    for _ in range(8):
        x.copy_(torch.randn(4, 4))
        a, b, c, d = call(launch, x)
        assert_same([a, b, c, d], [*views(x)])
        assert d is x
        a.zero_()
        assert not b.any() and not c.any()
    assert gpu.replays


def test_results_that_are_windows_on_arguments_are_so_after_each_replay(gpu):
    launch = launcher(lambda x: (x[1:], x.t(), x * 2))
    x, keep = torch.randn(4, 3), []
    for k in range(12):
        x = x if k < 8 else torch.randn(4, 3)
        keep.append(x)
        rows, turned, _ = call(launch, x)
        assert_same([rows, turned], [x[1:], x.t()])
        assert rows.data_ptr() == x[1].data_ptr() and turned.data_ptr() == x.data_ptr()
    assert gpu.replays


def test_constants_and_plain_results_are_returned_as_they_are(gpu):
    constant = torch.arange(4.0)
    launch = launcher(lambda x: (constant, None, 3, x + constant), constants=[constant])
    x = torch.ones(4)
    for _ in range(8):
        first, second, third, last = call(launch, x)
        assert first is constant and second is None and third == 3
        assert_same(last, x + constant)
    assert gpu.replays


def test_results_of_a_replay_have_the_version_and_layout_of_a_call(gpu):
    def transposed(x):
        return (x.t() + 1, x.sum())

    launch, x = launcher(transposed), torch.randn(3, 4)
    for _ in range(8):
        for found, expected in zip(call(launch, x), transposed(x), strict=True):
            assert found.stride() == expected.stride() and found._version == 0
            assert not found._is_view()
            assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert gpu.replays


def conjugates_and_parts(x):
    y = x * 2
    return x.conj(), x.conj().imag, torch.view_as_real(x), y.conj(), y.conj().imag[1:], y


def real_halves(x):
    return x.view(torch.int16), x[1:].view(torch.int16)[:, ::2], (x * 2).view(torch.int16)


@pytest.mark.parametrize("new", [False, True], ids=["same", "new"])
@pytest.mark.parametrize("lendable", [(), range(6)], ids=["copied", "lent"])
@pytest.mark.parametrize(
    ("function", "dtype"),
    [(conjugates_and_parts, torch.complex64), (real_halves, torch.float32)],
)
def test_results_keep_their_dtype_and_bits_after_each_replay(gpu, function, dtype, lendable, new):
    launch, held = launcher(function, lendable=lendable), [torch.randn(3, 4, dtype=dtype)]
    for _ in range(9):
        if new:
            held.append(torch.randn(5, 4, dtype=dtype)[1:4])
        results = call(launch, held[-1])
        assert_same((results, held[-1]), (function(held[-1]), held[-1]))
        bits = [(r.is_conj(), r.is_neg(), r._version) for r in results]
        assert bits == [(r.is_conj(), r.is_neg(), r._version) for r in function(held[-1])]
        del results
    assert gpu.replays


def test_larger_elements_over_those_of_an_argument_are_not_captured(gpu):
    launch = launcher(lambda x: (x.view(torch.float64), x * 2))
    x = torch.randn(3, 4)
    for _ in range(8):
        assert_same(call(launch, x)[0], x.view(torch.float64))
    assert not gpu.replays and "torch.float32 as torch.float64" in launch.obstacle


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
@pytest.mark.parametrize("make", [torch.conj, torch._neg_view, lambda x: x[:, ::2].conj()])
def test_arguments_with_bits_at_new_addresses(gpu, make, dtype):
    launch, held = launcher(lambda x: (x * 1, x)), []
    for _ in range(9):
        held.append(make(torch.randn(3, 4, dtype=dtype)))
        assert_same(call(launch, held[-1]), (held[-1] * 1, held[-1]))
    assert gpu.replays


def test_a_result_that_is_returned_twice_is_one_tensor_after_each_replay(gpu):
    def twice(x):
        y = x * 2
        return y, x + 1, y

    for lendable in (), (2,), (0, 2):
        launch, x = launcher(twice, lendable=lendable), torch.randn(3)
        for _ in range(9):
            a, b, c = call(launch, x)
            assert a is c and a._version == 0
            assert_same((a, b), (x * 2, x + 1))
            del a, b, c
    assert gpu.replays


def test_results_that_view_one_tensor_share_its_version_counter_after_each_replay(gpu):
    def views(x):
        y = x * 2
        return y, y[1:], y.view(torch.int32), x[1:]

    launch, x = launcher(views), torch.randn(4)
    for _ in range(9):
        results = call(launch, x)
        assert [r._version for r in results[:3]] == [0, 0, 0]
        results[1].add_(1)
        assert [r._version for r in results[:2]] == [1, 1]
        before = x._version
        results[3].add_(1)
        assert x._version == before + 1
    assert gpu.replays


# --- lent results --------------------------------------------------------------------------------


def test_lent_results_are_not_overwritten_while_somebody_holds_them(gpu):
    launch, (x, y) = launcher(scaled, lendable=(0,)), pair()
    warm(launch, x, y)
    held, expected = [], []
    for _ in range(3 * capture_site.MAX_GRAPHS):
        x.copy_(torch.randn(3, 4))
        held.append(call(launch, x, y))
        expected.append(scaled(x, y))
    assert_same(held, expected)
    assert len(set(gpu.replays)) == capture_site.MAX_GRAPHS


def test_a_lent_result_frees_its_graph_when_the_last_view_of_it_dies(gpu):
    launch, (x, y) = launcher(scaled, lendable=(0,)), pair()
    warm(launch, x, y)
    (graph,) = set(gpu.replays)
    assert not graph.is_held()
    view = call(launch, x, y)[0][1:].detach()
    assert gpu.replays[-1] is graph and graph.is_held()
    del view
    gc.collect()
    assert not graph.is_held()
    call(launch, x, y)
    assert gpu.replays[-1] is graph


def test_a_lent_result_outlives_its_launcher(gpu):
    launch, (x, y) = launcher(scaled, lendable=(0,)), pair()
    warm(launch, x, y)
    (found,) = call(launch, x, y)
    del launch
    gpu.replays.clear()
    gc.collect()
    torch.randn(1000)
    assert_same(found, *scaled(x, y))


def test_only_results_that_may_be_lent_are(gpu):
    launch, (x, y) = launcher(lambda x, y: (x * 2, x + y), lendable=(1,)), pair()
    warm(launch, x, y)
    copied = call(launch, x, y)[0]
    assert not gpu.replays[-1].is_held()
    lent = call(launch, x, y)[1]
    assert gpu.replays[-1].is_held()
    assert_same([copied, lent], [x * 2, x + y])


def test_a_result_that_shares_memory_with_one_that_is_not_lent_is_copied(gpu):
    def both(x):
        y = x * 2
        return y, y[1:]

    launch, x = launcher(both, lendable=(1,)), torch.randn(4)
    warm(launch, x)
    results = call(launch, x)
    assert not gpu.replays[-1].is_held()
    assert_same(results, both(x))


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_at_new_addresses_are_copied_to_the_graph(gpu):
    launch, (x, y) = launcher(scaled), pair()
    held = []
    for _ in range(12):
        held.append(torch.randn(3, 4))
        assert_same(call(launch, held[-1], y), scaled(held[-1], y))
    assert len(set(gpu.replays)) == 1 and len(gpu.replays) > 6
    result = x
    assert gpu.replays[0].nbytes == x.nbytes + result.nbytes, "nothing is held for the other one"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(6, 8)[:, :4].t(),
        lambda: torch.randn(4, 1).expand(4, 6),
        lambda: torch.randn(5, 6)[1:],
        lambda: torch.randn(0, 6),
    ],
    ids=["with gaps", "expanded", "with an offset", "empty"],
)
def test_arguments_of_any_layout_are_copied(gpu, make):
    launch, held = launcher(lambda x: (x * 2, x.sum(0))), []
    for _ in range(10):
        held.append(make())
        assert_same(call(launch, held[-1]), (held[-1] * 2, held[-1].sum(0)))
    assert gpu.replays


def test_writes_to_arguments_reach_them_and_are_counted_once(gpu):
    def step(x, y):
        x.add_(y)
        return (x * 2,)

    launch, fixed, held = launcher(step), torch.zeros(4), []
    for k in range(14):
        x = fixed if k < 8 else torch.zeros(4)
        held.append(x)
        twin, y, version = x.clone(), torch.randn(4), x._version
        assert_same(call(launch, x, y), step(twin, y))
        assert_same(x, twin)
        assert x._version == version + 1
    assert len(gpu.replays) > 6


def test_writes_in_inference_mode_reach_arguments(gpu):
    """Inference tensors count no writes."""
    launch, held = launcher(lambda x: (x.add_(1),)), []
    for k in range(12):
        with torch.inference_mode(k % 2 == 0):
            held.append(torch.randn(4))
            expected = held[-1] + 1
            call(launch, held[-1])
            assert_same(held[-1], expected)
    assert gpu.replays


def test_writes_to_a_staged_argument_with_gaps_leave_the_gaps(gpu):
    launch, held = launcher(lambda x: (x.mul_(2),)), []
    for _ in range(10):
        whole = torch.randn(4, 6)
        held.append(whole)
        expected = whole.clone()
        expected[:, :3] *= 2
        call(launch, whole[:, :3])
        assert_same(whole, expected)
    assert gpu.replays


def test_uncounted_writes_to_arguments_reach_them_and_what_is_returned(gpu):
    def step(x, y):
        with stand_in.uncounted():
            x.add_(y)
        return x[1:], x.view(2, 2)

    launch, held = launcher(step, written=(0,)), []
    for _ in range(10):
        x, y = torch.randn(4), torch.randn(4)
        held.append(x)
        expected = x + y
        results = call(launch, x, y)
        assert_same(x, expected)
        assert_same(results, (x[1:], x.view(2, 2)))
    assert gpu.replays


def test_many_staged_bytes_are_copied_only_once_addresses_have_settled(gpu, monkeypatch):
    monkeypatch.setattr(graphed_launcher, "MAX_STAGED_BYTES", 0)
    launch, held = launcher(lambda x: (x * 2,)), []
    for k in range(12):
        held.append(torch.randn(8))
        call(launch, held[-1])
        if k == UNTIL_CAPTURE:
            assert not gpu.replays
    assert gpu.replays


def test_captures_for_addresses_that_change_anew_have_to_pay(gpu):
    launch, held = launcher(lambda x: (x * 2,)), []
    for _ in range(4 * capture_site.FREE_CAPTURES):
        held.append(torch.randn(8))
        warm(launch, held[-1], calls=UNTIL_CAPTURE)
        assert_same(call(launch, held[-1]), (held[-1] * 2,))
    assert len(set(gpu.replays)) == capture_site.FREE_CAPTURES
    for _ in range(capture_site.MIN_REPLAYS * capture_site.FREE_CAPTURES):
        call(launch, next(x for x in held if x.data_ptr() == last_address(gpu)))
    warm(launch, held[0])
    assert len(set(gpu.replays)) == capture_site.FREE_CAPTURES + 1


def last_address(gpu):
    (address,) = gpu.replays[-1]._addresses
    return address


def test_graphs_beyond_the_bound_on_memory_are_given_up(gpu):
    first, second = (launcher(lambda x: (x * 2,)) for _ in range(2))
    x = torch.randn(8)
    gpu.memory = x.nbytes / held_graphs.MAX_MEMORY_SHARE
    for launch in (first, second):
        warm(launch, x)
        assert_same(call(launch, x), (x * 2,))
    assert first.report("forward").graphs == 0 and second.report("forward").graphs == 1


@pytest.mark.parametrize("lendable", [(), (0,)])
def test_memory_of_a_graph_is_given_back_after_it(gpu, lendable):
    before, x = set(StandInMemory.ids), torch.randn(8)
    launch = launcher(lambda x: (x * 2,), lendable=lendable)
    warm(launch, x)
    call(launch, x)
    assert gpu.replays and StandInMemory.ids - before
    gpu.replays.clear()
    del launch
    gc.collect()
    assert StandInMemory.ids == before


def test_numbers_among_the_arguments_have_graphs_of_their_own(gpu):
    launch, x = launcher(lambda x, n: (x * n,)), torch.randn(4)
    for _ in range(8):
        for n in (2, 3, 2.5):
            assert_same(call(launch, x, n), (x * n,))
    assert len(set(gpu.replays)) == 3


def test_sizes_have_graphs_of_their_own_and_the_least_recent_make_room(gpu, monkeypatch):
    monkeypatch.setattr(graphed_launcher, "MAX_SITES", 2)
    launch = launcher(lambda x: (x * 2,), symbolic=True)
    inputs = [torch.randn(n) for n in (2, 3, 4)]
    for x in (*inputs, inputs[0]):
        warm(launch, x)
        assert_same(call(launch, x), (x * 2,))
    assert len(set(gpu.replays)) == 4, "the first sizes were captured again"
    before = len(gpu.replays)
    call(launch, inputs[2])
    assert len(gpu.replays) == before + 1, "the sizes called before them were kept"


# --- when nothing is captured --------------------------------------------------------------------


def kernel_by_kernel(launch, gpu, *args, calls=2 * UNTIL_CAPTURE):
    before = len(gpu.replays)
    for _ in range(calls):
        assert_same(call(launch, *args), scaled(*args))
    return len(gpu.replays) == before


def test_a_graph_with_an_obstacle_is_never_captured(gpu):
    launch = launcher(scaled, obstacle="it waits")
    assert kernel_by_kernel(launch, gpu, *pair())
    assert str(launch.report("forward")) == "forward: launched kernel by kernel: it waits"


def test_no_replay_within_a_capture_of_the_program(gpu):
    launch, args = launcher(scaled), pair()
    warm(launch, *args)
    gpu.captured_by_program = True
    assert kernel_by_kernel(launch, gpu, *args)
    gpu.captured_by_program = False
    assert not kernel_by_kernel(launch, gpu, *args)


def test_a_graph_is_replayed_on_its_gpu_while_another_one_is_current(gpu):
    launch, args = launcher(scaled), pair()
    gpu.current = 1
    assert not kernel_by_kernel(launch, gpu, *args)
    assert gpu.current == 1


def test_each_stream_has_graphs_of_its_own_up_to_a_number_of_streams(gpu):
    launch, args = launcher(scaled), pair()
    for stream in range(capture_pool.MAX_POOLS):
        gpu.stream = stream
        assert not kernel_by_kernel(launch, gpu, *args)
    assert len(set(gpu.replays)) == capture_pool.MAX_POOLS
    gpu.stream = "one more"
    assert kernel_by_kernel(launch, gpu, *args)


def test_a_call_while_another_thread_replays_launches_kernels(gpu):
    launch, args = launcher(scaled), pair()
    warm(launch, *args)
    with capture_pool.pool_of(0, 0).lock:
        assert kernel_by_kernel(launch, gpu, *args)
    assert not kernel_by_kernel(launch, gpu, *args)


def test_the_lock_is_free_after_an_error_in_a_replay(gpu, monkeypatch):
    launch, args = launcher(scaled), pair()
    warm(launch, *args)

    def fail(graph):
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(gpu.graph, "replay", fail)
        with pytest.raises(torch.OutOfMemoryError):
            call(launch, *args)
    assert not kernel_by_kernel(launch, gpu, *args)


@pytest.mark.parametrize("where", ["in an operator", "at the end"])
def test_a_capture_that_fails_is_not_tried_again_and_leaves_arguments_alone(gpu, where):
    captures = []

    def write_and_read(x, y):
        x.add_(y)
        if stand_in.StandInGraph.capturing:
            captures.append(x)
            if where == "in an operator":
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return (x * 2,)

    if where == "at the end":
        gpu.graph.fails = "operation not permitted when stream is capturing\nmore"
    launch, x, y = launcher(write_and_read), torch.zeros(4), torch.ones(4)
    for k in range(3 * UNTIL_CAPTURE):
        assert_same(call(launch, x, y), (torch.full((4,), 2.0 * (k + 1)),))
    assert len(captures) == 1 and not gpu.replays and not stand_in.StandInGraph.capturing
    assert launch.obstacle == (
        "its capture failed: operation not permitted when stream is capturing"
    )


def test_an_alarm_in_a_capture_reaches_the_program_and_forbids_no_later_capture(gpu):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    armed = []

    def ringing(x):
        if stand_in.StandInGraph.capturing and not armed:
            armed.append(True)
            signal.raise_signal(signal.SIGALRM)
        return (x * 2,)

    launch, x = launcher(ringing), torch.randn(4)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Alarm):
            for _ in range(UNTIL_CAPTURE + 2):
                call(launch, x)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert armed and launch.obstacle is None and not stand_in.StandInGraph.capturing
    for _ in range(UNTIL_CAPTURE):
        assert_same(call(launch, x), (x * 2,))
    assert gpu.replays


def test_exhausted_memory_ends_captures_for_these_sizes_only(gpu, monkeypatch):
    launch = launcher(lambda x: (x * 2,), symbolic=True)
    small, large = torch.randn(4), torch.randn(400)
    make = captured_graph.CapturedGraph.__init__

    def limited(graph, call, args, *rest):
        if args[0].numel() == 400:
            raise torch.OutOfMemoryError("no memory")
        make(graph, call, args, *rest)

    monkeypatch.setattr(captured_graph.CapturedGraph, "__init__", limited)
    for _ in range(2 * UNTIL_CAPTURE):
        for x in (small, large):
            assert_same(call(launch, x), (x * 2,))
    assert len(gpu.replays) == UNTIL_CAPTURE + 1
    report = str(launch.report("inference"))
    assert "for 1 of 2 combinations of sizes" in report and "GPU memory was exhausted" in report


# --- launches or the GPU -------------------------------------------------------------------------


def measured(gpu, gpu_ms, *, finished=True):
    gpu.event.gpu_ms, gpu.event.finished = gpu_ms, finished
    return launcher(scaled, policy=CudaGraphs.IF_FASTER)


def test_graphs_are_captured_where_launches_take_as_long_as_the_gpu(gpu):
    assert not kernel_by_kernel(measured(gpu, 0.0), gpu, *pair())


def test_nothing_is_captured_where_the_gpu_takes_longer(gpu):
    launch = measured(gpu, 1e6)
    assert kernel_by_kernel(launch, gpu, *pair())
    assert "the GPU takes longer than the launches" in str(launch.report("inference"))


def test_nothing_is_captured_where_the_gpu_has_work_left_at_every_call(gpu):
    launch = measured(gpu, 0.0, finished=False)
    assert kernel_by_kernel(launch, gpu, *pair(), calls=20)
    assert launch.report("inference").obstacles == ("the GPU takes longer than the launches",)


def test_nothing_is_measured_where_graphs_are_always_wanted(gpu):
    gpu.event.gpu_ms = 1e6
    assert not kernel_by_kernel(launcher(scaled), gpu, *pair())


# --- reports -------------------------------------------------------------------------------------


def test_report_counts_graphs_and_the_bytes_that_they_hold(gpu):
    launch, y = launcher(scaled, lendable=(0,)), torch.randn(4)
    assert str(launch.report("forward")).startswith("forward: no CUDA graph yet")
    held = [torch.randn(3, 4) for _ in range(8)]
    for x in held:
        call(launch, x, y)
    assert launch.report("forward") == CaptureReport(
        "forward", graphs=1, sites=1, captured_sites=1, nbytes=2 * held[0].nbytes
    )


def test_report_of_a_graph_in_pieces_sums_them_up(gpu):
    x = torch.randn(8)
    pieces = [launcher(lambda x: (x * 2,)), launcher(lambda x: (x + 1,))]
    for piece in pieces:
        warm(piece, x)
        call(piece, x)
    report = report_pieces("aten.nonzero.default waits for the GPU", pieces, "forward")
    assert (report.graphs, report.pieces, report.nbytes) == (2, 2, 2 * x.nbytes)
    assert str(report) == (
        "forward: 2 CUDA graphs, 0.0 MB; in 2 pieces, as a CUDA graph cannot hold all: "
        "aten.nonzero.default waits for the GPU"
    )


def test_report_names_each_obstacle_once():
    report = CaptureReport("backward", obstacles=("a", "b"))
    assert str(report) == ("backward: launched kernel by kernel: a; launched kernel by kernel: b")
    report = CaptureReport("forward", 2, 3, 1, 1_500_000, (FORBIDDEN,))
    assert str(report) == (
        "forward: 2 CUDA graphs, 1.5 MB, for 1 of 3 combinations of sizes; other calls are "
        f"launched kernel by kernel: {FORBIDDEN}"
    )
