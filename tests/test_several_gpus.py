"""Programs on the second GPU of a machine, on both GPUs, and on streams other than the default."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.compiler import dynamo_backend
from tests.compare import assert_same
from tests.programs import Twins

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
BUSY = 200_000_000  # cycles: about a tenth of a second, longer than any call here


@pytest.fixture(autouse=True)
def _first_gpu_current():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0, "a call has left another GPU as the current one"
    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)


def on(device, *sizes, grad=False):
    """A function that returns inputs on ``device``, with equal numbers on each device."""

    def make():
        generator = torch.Generator("cpu").manual_seed(0)
        return tuple(
            torch.randn(size, generator=generator, device="cpu").to(device).requires_grad_(grad)
            for size in sizes
        )

    return make


def both(*sizes, grad=False):
    """A function that returns inputs on the first GPU, then equal ones on the second."""
    return lambda: (*on(FIRST, *sizes, grad=grad)(), *on(SECOND, *sizes, grad=grad)())


def twins(make):
    return Twins(make, backend="magpy", options={"strict": True})


def check_recorded(program, inputs, **options):
    """Compares three calls to eager calls; the last two must hit."""
    pair = twins(lambda: program)
    pair.call(inputs, hit=False, **options)
    pair.call(inputs, hit=True, **options)
    pair.call(inputs, hit=True, **options)
    return pair


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, x):
        x = F.gelu(self.norm(self.conv(x))).amax((2, 3))
        return F.log_softmax(self.out(self.drop(x)), -1)


def make_net(device):
    torch.manual_seed(0)
    return Net().to(device)


# --- the second GPU -------------------------------------------------------------------------------


def test_model_trains_on_the_second_gpu_while_the_first_is_current():
    eager, target = make_net(SECOND), make_net(SECOND)
    compiled = magpy.compile(target, options={"strict": True})
    optimizers = [
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (eager, target)
    ]
    (x,) = on(SECOND, (4, 3, 16, 16))()
    for step in range(4):
        losses = []
        for model, optimizer in zip((eager, compiled), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), torch.arange(4, device=SECOND))
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
        assert losses[1].device == SECOND
    for a, b in zip(target.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert a.device == SECOND
    assert magpy.cache_info(compiled).hits >= 2


def test_model_infers_on_the_second_gpu():
    with torch.no_grad():
        check_recorded(make_net(SECOND).eval(), on(SECOND, (4, 3, 16, 16)))


def test_each_gpu_has_its_own_record():
    pair = twins(lambda: lambda x: F.softmax(x * 2, -1).cumsum(0))
    for device in (FIRST, SECOND):
        pair.call(on(device, (64, 700)), hit=False)
        pair.call(on(device, (64, 700)), hit=True)
    for device in (SECOND, FIRST, SECOND):
        pair.call(on(device, (64, 700)), hit=True)


@pytest.mark.parametrize("current", [0, 1])
def test_current_gpu_does_not_affect_existing_tensors(current):
    pair = check_recorded(lambda x, y: (F.layer_norm(x, (700,)), y.sum()), both((64, 700)))
    with torch.cuda.device(current):
        pair.call(both((64, 700)), hit=True)
        assert torch.cuda.current_device() == current


def test_random_numbers_come_from_the_generator_of_the_tensors_gpu():
    def program(x):
        return F.dropout(x, 0.5), torch.rand_like(x), torch.randn(5, device=x.device)

    fast = magpy.compile(program, options={"strict": True})
    for device in (SECOND, FIRST, SECOND, SECOND):
        (x,) = on(device, (33, 7))()
        outcomes = []
        for f in (program, fast):
            torch.manual_seed(3)
            outcomes.append((f(x), [torch.rand(3, device=d) for d in (FIRST, SECOND)]))
        assert_same(outcomes[1], outcomes[0])


# --- both GPUs ------------------------------------------------------------------------------------


def test_one_graph_computes_on_both_gpus():
    def program(a, b):
        on_first, on_second = (a * 2).softmax(-1).sum(0), F.gelu(b + 1)
        return on_second * on_first.to(b.device), on_first + on_second.to(a.device).amax(0)

    check_recorded(program, both((64, 700)))


def test_gradients_return_to_the_gpu_of_their_inputs():
    def program(a, b):
        hidden = torch.tanh(a).to(b.device)
        return (F.layer_norm(hidden * b, (70,)) ** 2).sum()

    check_recorded(program, both((6, 70), grad=True), backward=True)


def test_model_may_be_spread_over_both_gpus():
    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64)).to(FIRST)
            self.second = nn.Sequential(nn.Linear(64, 16), nn.Softmax(-1)).to(SECOND)

        def forward(self, x):
            return self.second(self.first(x).to(SECOND)).to(x.device)

    pair = twins(Spread)
    for hit in (False, True, True):
        pair.call(on(FIRST, (8, 32), grad=True), hit=hit, backward=True)


def test_tensors_on_both_gpus_are_written():
    def program(a, b):
        a.copy_(b)
        b.add_(1)
        return a.mul_(2)[1:], b.t()

    check_recorded(program, both((5, 7)))


def test_operators_on_tensors_of_both_gpus_raise_as_in_eager():
    pair = twins(lambda: lambda a, b: (a.exp() + b).sum())
    for _ in range(3):
        pair.call(both((5, 7)))


def test_cpu_scalar_combines_with_tensors_of_either_gpu():
    def program(a, b, number):
        return a * number, b / number + number

    check_recorded(program, lambda: (*both((5, 7))(), torch.tensor(3.0)))


def test_cpu_indices_combine_with_tensors_of_either_gpu():
    def program(a, b, index):
        return a[index] * 2, b[:, index].sum(0)

    check_recorded(program, lambda: (*both((5, 5))(), torch.tensor([3, 0, 3])))


# --- the current GPU ------------------------------------------------------------------------------


def on_current_gpu(x):
    return torch.arange(4, device="cuda") * 2, torch.rand(3, device="cuda"), x.cuda() + 1


CURRENT_GPUS = [(0, False), (0, True), (1, False), (1, True), (0, True), (1, True)]
"""Current GPU of successive calls, and whether a record for it exists."""
CUDA_SPELLINGS = {
    "text": lambda x: x.to("cuda") * 2,
    "device": lambda x: x.to(torch.device("cuda")) * 2,
    "keyword": lambda x: torch.ones(3, device="cuda") * 2,
    "cuda": lambda x: x.cuda() * 2,
    "cuda of None": lambda x: x.cuda(None) * 2,
    "type": lambda x: x.type("torch.cuda.FloatTensor") * 2,
    "tensor type": lambda x: x.type(torch.cuda.FloatTensor) * 2,
    "constructor": lambda x: torch.cuda.FloatTensor([1, 2]) * 2,
    "like": lambda x: torch.zeros_like(x, device="cuda") + 1,
    "new": lambda x: x.new_ones(3, device="cuda") + 1,
    "data": lambda x: torch.tensor([1.0, 2.0], device="cuda") + 1,
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0], device="cuda") + 1,
    "module": lambda x: nn.Linear(4, 2, device="cuda").weight.detach() * 0 + 1,
    "moved module": lambda x: nn.BatchNorm1d(4).to("cuda").weight.detach() + 1,
    "index": lambda x: torch.ones(3, device=f"cuda:{torch.cuda.current_device()}") + 1,
    "under vmap": lambda x: torch.vmap(lambda r: r.to("cuda") + torch.ones(4, device="cuda"))(x),
    "generator": lambda x: torch.ones(3, device=torch.Generator("cuda").device) + 1,
}


@pytest.mark.parametrize("spelling", CUDA_SPELLINGS)
def test_every_spelling_of_cuda_is_the_current_gpu_of_each_call(spelling):
    pair = twins(lambda: CUDA_SPELLINGS[spelling])
    for current in (0, 0, 1, 1, 0, 1):
        with torch.cuda.device(current):
            expected = pair.call(on("cpu", (3, 4)))
        assert expected.device.index == current


def test_dynamo_graph_uses_the_gpu_that_is_current_at_compilation():
    """Dynamo does not guard the current GPU, so it is reset before each is tested."""
    for current in (0, 1):
        torch._dynamo.reset()
        with torch.cuda.device(current):
            for spelling in ("keyword", "cuda", "text"):
                fast = torch.compile(
                    CUDA_SPELLINGS[spelling], backend=dynamo_backend, options={"strict": True}
                )
                assert fast(*on("cpu", (3, 4))()).device.index == current


def test_tensor_moves_from_another_gpu_to_the_current_one():
    pair = twins(lambda: lambda x: x.cuda() * 2 + x.to("cuda"))
    for device in (FIRST, SECOND, FIRST):
        for current in (0, 1, 0):
            with torch.cuda.device(current):
                assert pair.call(on(device, (3,))).device.index == current


def test_cuda_without_index_is_the_current_gpu_of_each_call():
    pair = twins(lambda: on_current_gpu)
    for current, hit in CURRENT_GPUS:
        with torch.cuda.device(current):
            expected = pair.call(on("cpu", (3, 4)), hit=hit)
        assert {t.device.index for t in expected} == {current}


def test_default_device_without_index_is_the_current_gpu_of_each_call():
    pair = twins(lambda: lambda x: (torch.ones(3) * 2, x + 1))
    for current, hit in CURRENT_GPUS:
        with torch.cuda.device(current), torch.device("cuda"):
            expected = pair.call(on("cpu", (3, 4)), hit=hit)
        assert expected[0].device.index == current


def test_disk_cache_distinguishes_current_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            pair = twins(lambda: on_current_gpu)
            for hit in (False, True):
                pair.call(on("cpu", (3, 4)), hit=hit)


def test_graph_that_writes_to_saved_tensors_distinguishes_current_gpus():
    """Such a graph runs operator by operator while gradients are recorded."""
    splits = magpy.disable(lambda: None)

    def program(x):
        h = x * 2
        k = h.sin()
        splits()
        h.mul_(1)
        return k.sum(), torch.ones(3, device="cuda")

    pair = twins(lambda: program)
    for current in (0, 0, 1, 1, 0, 1):
        with torch.cuda.device(current):
            expected = pair.call(on("cpu", (3,), grad=True))
        assert expected[1].device.index == current


def test_program_may_change_the_current_gpu():
    def program(x):
        before = torch.ones(3, device="cuda")
        with torch.cuda.device(1):
            inside = torch.ones(3, device="cuda") * 2
        torch.cuda.set_device(1)
        behind = torch.ones(3, device="cuda") * 3
        torch.cuda.set_device(0)
        return before, inside, behind, x.sin()

    pair = twins(lambda: program)
    for _ in range(3):
        expected = pair.call(on(FIRST, (3,)))
        assert [t.device.index for t in expected] == [0, 1, 1, 0]


def test_program_may_leave_another_current_gpu():
    def program(x):
        torch.cuda.set_device(1 - torch.cuda.current_device())
        return torch.ones(3, device="cuda") + x.to("cuda")

    fast = magpy.compile(program, options={"strict": True})
    (x,) = on("cpu", (3,))()
    for k in range(5):
        assert fast(x).device.index == torch.cuda.current_device() == (k + 1) % 2
    torch.cuda.set_device(0)


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [FIRST, SECOND])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 + 1,
        lambda x: (x.sum(), x.softmax(0)),
        lambda x: x.cumsum(0),
        lambda x: (x.view(1000, -1) @ x.view(-1, 1000)).relu(),
    ],
    ids=["pointwise", "reduction", "scan", "product"],
)
def test_kernels_run_on_the_current_stream(program, device):
    """A kernel on another stream would read the values from before the fill."""
    fast = magpy.compile(program, options={"strict": True})
    x = torch.ones(1_000_000, device=device)
    for _ in range(2):
        fast(x)
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        x.fill_(3)
        found = fast(x)
    assert not stream.query(), "the test is void: the stream has already finished"
    stream.synchronize()
    torch.testing.assert_close(found, program(torch.full_like(x, 3)))


def test_gradients_run_on_the_stream_of_the_forward_pass():
    def program(x):
        return torch.sin(x * 2).sum()

    fast = magpy.compile(program, options={"strict": True})
    x = torch.ones(1_000_000, device=SECOND, requires_grad=True)
    for _ in range(2):
        torch.autograd.grad(fast(x), x)
    torch.cuda.synchronize(SECOND)
    stream = torch.cuda.Stream(SECOND)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        with torch.no_grad():
            x.fill_(3)
        (found,) = torch.autograd.grad(fast(x), x)
    assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(found, 2 * torch.cos(2 * x.detach()))


def test_gradients_on_both_gpus_wait_for_the_streams_of_the_forward_pass():
    def program(a, b):
        return (torch.tanh(a).to(b.device) * b).sum()

    fast = magpy.compile(program, options={"strict": True})
    a = torch.ones(1_000_000, device=FIRST, requires_grad=True)
    b = torch.ones(1_000_000, device=SECOND, requires_grad=True)
    for _ in range(3):
        torch.autograd.grad(fast(a, b), (a, b))
    assert magpy.cache_info(fast).hits >= 1
    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)
    streams = [torch.cuda.Stream(device) for device in (FIRST, SECOND)]
    with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
        for k, t in enumerate((a, b)):
            with torch.cuda.device(k), torch.no_grad():
                torch.cuda._sleep(BUSY)
                t.fill_(2 + k)
        found = torch.autograd.grad(fast(a, b), (a, b))
    assert not streams[0].query()
    for stream in streams:
        stream.synchronize()
    expected = torch.autograd.grad(program(a, b), (a, b))
    torch.testing.assert_close(found, expected)


def test_program_may_switch_to_its_own_stream():
    def make():
        other_stream = torch.cuda.Stream(FIRST)

        def program(x):
            other_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other_stream):
                y = x * 2
            torch.cuda.current_stream().wait_stream(other_stream)
            return y + 1

        return program

    program = make()
    fast = magpy.compile(program, options={"strict": True})
    (x,) = on(FIRST, (1000,))()
    for _ in range(3):
        torch.testing.assert_close(fast(x), x * 2 + 1)


# --- threads --------------------------------------------------------------------------------------


def test_threads_may_use_one_gpu_each():
    fast = magpy.compile(lambda x: F.softmax(x * 2, -1).sum(0), options={"strict": True})
    failures = []

    def work(device):
        try:
            torch.cuda.set_device(device)
            for k in range(20):
                x = torch.full((64, 100), float(k), device=device)
                torch.testing.assert_close(fast(x), F.softmax(x * 2, -1).sum(0))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(d,)) for d in (FIRST, SECOND, FIRST, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
