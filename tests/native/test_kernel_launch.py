"""Launches in C++ with a stub of the CUDA driver: parameters, variants, plans, streams, errors."""

import gc
import sys
import threading
import weakref

import pytest
import torch

from magpy_like.native import KernelLaunch, open_driver
from tests.native.cuda_driver_stub import CONTEXT, DriverStub


@pytest.fixture
def driver():
    stub = DriverStub()
    yield stub
    stub.close()


class Kernel:
    """The Python side of a kernel: of ``letters``, two pointers unless told otherwise."""

    def __init__(self, driver, plan=lambda *sizes: ((7,), (), False), *, rest="", **counts):
        self.driver, self.plan_of = driver, plan
        self.counts = {"pointers": 2, "workspaces": 0, "sizes": 0, "numbers": "", **counts}
        memory = self.counts["pointers"] + self.counts["workspaces"]
        self.letters = "Q" * memory + rest + "QQ"
        self.in_python, self.planned, self.made, self.rooms = [], [], [], []
        self.stream, self.context, self.stages = 5, CONTEXT, 1
        self.functions = {}
        self.launch = KernelLaunch(
            self.python, self.plan, self.variant, self.workspace, self.stream_of, 3,
            *self.counts.values(),
        )  # fmt: skip

    def python(self, *args):
        self.in_python.append(args)

    def plan(self, *sizes):
        self.planned.append(sizes)
        return self.plan_of(*sizes)

    def variant(self, wide, aligned):
        self.made.append((wide, aligned))
        letters = self.letters.replace("i", "q") if wide else self.letters
        names = [f"stage{k}" for k in range(self.stages)]
        functions = [self.driver.function(letters) for _ in names]
        self.functions |= {function: (wide, aligned) for function in functions}
        stages = ((n, f, 64 << k, 16 * k) for k, (n, f) in enumerate(zip(names, functions)))
        return self.context, tuple(stages)

    def workspace(self, elements):
        self.rooms.append([torch.empty(n) for n in elements])
        return self.rooms[-1]

    def stream_of(self, device):
        assert device == 3
        return self.stream

    @property
    def variants(self):
        """(wide, aligned) of each recorded launch."""
        return [self.functions[launch.function] for launch in self.driver.launches]


def test_tensors_are_passed_as_addresses_of_their_first_elements(driver):
    kernel = Kernel(driver)
    base = torch.zeros(64, dtype=torch.float16)
    kernel.launch(base[8:], torch.nn.Parameter(base))
    (launch,) = driver.launches
    address = base.data_ptr()
    assert launch.values("QQQQ") == [address + 16, address, 0, 0], "and null pointers of Triton"
    assert (launch.grid, launch.block) == ((7, 1, 1), (64, 1, 1))
    assert launch.shared_bytes == 0 and launch.stream == 5
    kernel.launch(2**63, 64)
    assert driver.launches[1].values("QQQQ") == [2**63, 64, 0, 0]


def test_an_empty_tensor_is_passed_as_null(driver):
    kernel = Kernel(driver)
    kernel.launch(torch.empty(0), torch.ones(4)[4:])
    assert driver.launches[0].values("QQQQ") == [0, 0, 0, 0]


def test_memory_that_is_copied_on_write_is_copied_first(driver):
    original = torch.ones(64)
    clone = torch._lazy_clone(original)
    Kernel(driver).launch(clone, original)
    first, second = driver.launches[0].values("QQQQ")[:2]
    assert first == clone.data_ptr() != second == original.data_ptr()


def test_numbers_are_packed_in_the_types_of_the_kernel(driver):
    kernel = Kernel(driver, sizes=2, numbers="qdfi", rest="iiqdfi")
    kernel.launch(16, 32, 5, -1, -(2**40), 1e300, 0.1, -7)
    values = driver.launches[0].values("QQiiqdfiQQ")[2:-2]
    assert values == [5, -1, -(2**40), 1e300, torch.tensor(0.1).item(), -7]
    kernel.launch(16, 32, 5, -1, 2**62, 3, 4, 0)
    assert driver.launches[1].values("QQiiqdfiQQ")[2:-2] == [5, -1, 2**62, 3.0, 4.0, 0]


def test_sizes_have_64_bits_where_positions_need_them(driver):
    kernel = Kernel(driver, lambda s, *_: ((s % 1000,), (), s > 100), sizes=1, rest="i")
    kernel.launch(16, 16, 7)
    kernel.launch(16, 16, 2**33 + 7)
    assert kernel.variants == [(False, True), (True, True)]
    assert driver.launches[1].values("QQqQQ")[2] == 2**33 + 7
    assert kernel.made == [(False, True), (True, True)]


def test_a_size_that_does_not_fit_its_parameter_is_left_to_python(driver):
    kernel = Kernel(driver, sizes=1, rest="i")
    kernel.launch(16, 16, 2**31)
    assert not driver.launches and kernel.in_python == [(16, 16, 2**31)]


@pytest.mark.parametrize(
    ("first", "second", "aligned"),
    [(64, 128, True), (68, 128, False), (64, 136, False), (0, 0, True)],
)
def test_the_variant_follows_the_alignment_of_all_pointers(driver, first, second, aligned):
    kernel = Kernel(driver)
    for _ in range(2):
        kernel.launch(first, second)
    assert kernel.variants == [(False, aligned)] * 2
    assert kernel.made == [(False, aligned)], "each variant is compiled once"


def test_a_variant_is_compiled_for_the_call_that_needs_it(driver):
    kernel = Kernel(driver)
    memory = torch.zeros(64)
    for tensor in (memory, memory[1:], memory[4:], memory[1:]):
        kernel.launch(tensor, memory)
    assert [aligned for _, aligned in kernel.variants] == [True, False, True, False]
    assert kernel.made == [(False, True), (False, False)]


def test_the_plan_is_computed_when_sizes_change(driver):
    kernel = Kernel(driver, lambda a, b: ((a * b,), (), False), sizes=2, rest="ii")
    for sizes in ((2, 3), (2, 3), (3, 2), (4, 5), (4, 5), (2, 3)):
        kernel.launch(16, 16, *sizes)
    assert [launch.grid[0] for launch in driver.launches] == [6, 6, 6, 20, 20, 6]
    assert kernel.planned == [(2, 3), (3, 2), (4, 5), (2, 3)]


def test_numbers_are_no_part_of_the_plan(driver):
    kernel = Kernel(driver, numbers="q", rest="q")
    for number in range(3):
        kernel.launch(16, 16, number)
    assert kernel.planned == [()]


def test_empty_grids_are_not_launched(driver):
    kernel = Kernel(driver, lambda s: ((s,), (), False), sizes=1, rest="i")
    kernel.launch(16, 16, 0)
    assert not driver.launches and not kernel.made


def test_stages_run_in_order_without_the_empty_ones(driver):
    kernel = Kernel(driver, lambda: ((4, 0, 2), (), False))
    kernel.stages = 3
    kernel.launch(16, 32)
    assert [(k.grid[0], k.block[0], k.shared_bytes) for k in driver.launches] == [
        (4, 64, 0),
        (2, 256, 32),
    ]


def test_workspaces_are_passed_after_the_pointers(driver):
    kernel = Kernel(driver, lambda: ((4,), (100, 200), False), workspaces=2)
    kernel.launch(16, 32)
    kernel.launch(16, 32)
    for launch, room in zip(driver.launches, kernel.rooms, strict=True):
        assert [len(r) for r in room] == [100, 200]
        assert launch.values("QQQQQQ")[2:4] == [r.data_ptr() for r in room]
    died = weakref.ref(kernel.rooms[0][0])
    kernel.rooms.clear()
    assert died() is None


def test_the_stream_is_that_of_each_call(driver):
    kernel = Kernel(driver)
    for kernel.stream in (0, 2**47 + 8, 1):
        kernel.launch(16, 32)
    assert [launch.stream for launch in driver.launches] == [0, 2**47 + 8, 1]


@pytest.mark.parametrize("context", [0, 0xC8])
def test_python_launches_where_another_device_is_current(driver, context):
    kernel = Kernel(driver)
    kernel.launch(16, 32)
    driver.set_context(context)
    tensor = torch.ones(1)
    kernel.launch(tensor, 32)
    driver.set_context(CONTEXT)
    kernel.launch(16, 32)
    assert len(driver.launches) == 2 and len(kernel.in_python) == 1
    assert kernel.in_python[0][0] is tensor


@pytest.mark.parametrize("context", [None, 0, CONTEXT])
def test_python_launches_variants_without_a_fitting_description(driver, context):
    kernel = Kernel(driver)
    asked = []
    stage = ("stage", driver.function("QQQQ"), 32, 0)
    stages = (stage, stage) if context else (stage,)  # the plan has one grid
    variant = None if context is None else (context, stages)
    launch = KernelLaunch(
        kernel.python, kernel.plan, lambda *key: asked.append(key) or variant, kernel.workspace,
        kernel.stream_of, 3, 2, 0, 0, "",
    )  # fmt: skip
    driver.set_context(context or 0)
    for _ in range(2):
        launch(16, 32)
    assert kernel.in_python == [(16, 32)] * 2 and asked == [(False, True)]
    assert not driver.launches


def test_grids_beyond_31_bits_are_left_to_python(driver):
    kernel = Kernel(driver, lambda: ((2**31,), (), False))
    kernel.launch(16, 32)
    assert kernel.in_python == [(16, 32)] and not driver.launches


def test_a_refused_launch_raises_the_drivers_text(driver):
    kernel = Kernel(driver, lambda: ((4, 3), (10,), False), workspaces=1)
    kernel.stages = 2
    driver.set(result=701)
    with pytest.raises(RuntimeError, match=r"stage0 \(4 programs of 64 threads.*"
                       "CUDA_ERROR_STUBBED: the stub refuses"):  # fmt: skip
        kernel.launch(16, 32)
    assert not driver.launches
    driver.set(result=0)
    kernel.launch(16, 32)
    assert len(driver.launches) == 2


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((16, "32", 1, 1.0), TypeError, "expected a tensor or an address, got str"),
        ((16, None, 1, 1.0), TypeError, "expected a tensor or an address, got NoneType"),
        ((-1, 32, 1, 1.0), OverflowError, "negative"),
        ((2**64, 32, 1, 1.0), OverflowError, "int too big|int too large"),
        ((16, 32, 1.5, 1.0), TypeError, "integer"),
        ((16, 32, 2**63, 1.0), OverflowError, "int too big|int too large"),
        ((16, 32, 1, "1"), TypeError, "must be real number"),
        ((16, 32, 1), TypeError, "expected 4 arguments, got 3"),
        ((16, 32, 1, 1.0, 1), TypeError, "expected 4 arguments, got 5"),
        ((torch.ones(2).to_sparse(), 32, 1, 1.0), RuntimeError, "storage"),
    ],
)
def test_wrong_arguments_raise(driver, args, error, text):
    kernel = Kernel(driver, sizes=1, numbers="d", rest="id")
    with pytest.raises(error, match=text):
        kernel.launch(*args)
    assert not driver.launches
    with pytest.raises(TypeError, match="expected 4 arguments"):
        kernel.launch(16, 32, 1, n=1.0)


@pytest.mark.parametrize("method", ["plan", "variant", "workspace", "stream_of"])
def test_errors_of_python_reach_the_caller(driver, method, monkeypatch):
    class Failed(Exception):
        pass

    def fail(self, *args):
        raise Failed

    monkeypatch.setattr(Kernel, method, fail)
    kernel = Kernel(driver, lambda: ((4,), (10,), False), workspaces=1)
    for _ in range(2):
        with pytest.raises(Failed):
            kernel.launch(16, 32)
    assert not driver.launches


@pytest.mark.parametrize(
    "plan", [None, ((1,), ()), ([1], (), False), (("1",), (), False), ((1,) * 33, (), False)]
)
def test_malformed_plans_raise(driver, plan):
    with pytest.raises((TypeError, ValueError)):
        Kernel(driver, lambda: plan).launch(16, 32)


@pytest.mark.parametrize("variant", [7, (1,), (1, [2]), (1, (2,)), (1, (("a", 2, 3),))])
def test_malformed_variants_raise(driver, variant, monkeypatch):
    monkeypatch.setattr(Kernel, "variant", lambda *_: variant)
    with pytest.raises(TypeError):
        Kernel(driver).launch(16, 32)


def test_kernels_with_too_many_parameters_or_unknown_types_are_refused(driver):
    with pytest.raises(ValueError, match="too many parameters"):
        Kernel(driver, pointers=499)
    with pytest.raises(ValueError, match="unknown types"):
        Kernel(driver, numbers="x")
    Kernel(driver, pointers=498)


def test_the_most_parameters_are_packed(driver):
    kernel = Kernel(driver, pointers=60)
    kernel.launch(*range(0, 960, 16))
    assert driver.launches[0].values("Q" * 62) == [*range(0, 960, 16), 0, 0]


def test_a_library_without_the_drivers_functions_is_no_driver(driver, tmp_path):
    assert not open_driver(str(tmp_path / "absent.so"))
    assert not open_driver("libc.so.6")
    Kernel(driver).launch(16, 32)
    assert len(driver.launches) == 1, "the driver in use stays"


def test_threads_with_different_sizes_do_not_mix_their_plans(driver):
    kernel = Kernel(driver, lambda s: ((s,), (), False), sizes=1, rest="i")

    def work(size):
        for k in range(20):
            kernel.launch(16, 16, size + k % 3)

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 80
    assert all(launch.grid[0] == launch.values("QQiQQ")[2] for launch in driver.launches)


def test_plans_are_freed(driver):
    elements, sizes = tuple([10]), []
    plan = lambda s: ((4,), elements, False)
    kernel = Kernel(driver, plan, workspaces=1, sizes=1, rest="i")
    before = sys.getrefcount(elements)
    for size in (1, 1, 2, 3, 3, 0):
        kernel.launch(16, 32, size)
        sizes.append(sys.getrefcount(elements))
    assert sizes == [before + 1] * 6, "one plan is kept"
    del kernel
    gc.collect()
    assert sys.getrefcount(elements) == before


def test_a_launch_keeps_nothing_alive(driver):
    kernel = Kernel(driver)
    tensor = torch.ones(4)
    kernel.launch(tensor, tensor)
    died, owner = weakref.ref(tensor), weakref.ref(kernel)
    del tensor
    assert died() is None
    launch = kernel.launch
    del kernel.launch, kernel
    gc.collect()
    assert owner() is not None, "the Python side lives as long as its launcher"
    del launch
    gc.collect()
    assert owner() is None
