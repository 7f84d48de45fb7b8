"""A compiled object is accepted where the original is: types, signatures, copies, tracers, the
methods that go past the call; the same for callable objects and classes."""

import abc
import asyncio
import copy
import functools
import gc
import inspect
import multiprocessing
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import matrix, tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.count = 0

    def forward(self, x, factor: float = 2.0):
        return self.layer(x) * factor

    def generate(self, x, steps=3):
        for _ in range(steps):
            x = self(x)
        return x

    def refine(self, x, steps=3):
        for _ in range(steps):
            x = self.forward(x)
        return x

    def train(self, mode=True):
        super().train(mode)
        self.layer.training = False
        return self


def compiled(cls=Net, **settings):
    torch.manual_seed(0)
    original = cls()
    return original, magpy.compile(original, **{"backend": "eager", **settings})


# --- type and state -------------------------------------------------------------------------------


def test_a_compiled_module_answers_with_the_class_of_the_original():
    original, fast = compiled()
    assert isinstance(fast, Net) and fast.__class__ is Net
    assert type(fast).__name__ == "Net" and type(fast).__module__ == Net.__module__
    assert vars(fast) is vars(original)
    assert isinstance(type(fast)(), Net) and type(type(fast)()) is Net
    assert inspect.signature(fast) == inspect.signature(original)
    assert inspect.signature(fast.forward) == inspect.signature(original.forward)
    assert weakref.ref(fast)() is fast


def test_an_abstract_base_class_knows_the_compiled_module():
    class Base(abc.ABC, nn.Module):
        @abc.abstractmethod
        def rate(self): ...

    class Model(Base):
        def rate(self):
            return 3

        def forward(self, x):
            return x * self.rate()

    original, fast = compiled(Model)
    assert isinstance(fast, Base) and fast.rate() == 3
    assert_same(fast(tensor(1)), tensor(3))
    assert type(original) is Model


def test_compiling_announces_no_class_to_the_program():
    announced = []

    class Meta(type):
        def __init__(cls, *args):
            announced.append(cls)

    class Base(nn.Module, metaclass=Meta):
        def __init_subclass__(cls):
            announced.append(cls)

    class Model(Base):
        def forward(self, x):
            return x + 1

    before = len(announced)
    _, fast = compiled(Model)
    assert_same(fast(tensor(1)), tensor(2))
    magpy.compile(Model, backend="eager")
    assert len(announced) == before


def test_the_original_stays_uncompiled():
    original, fast = compiled()
    original(matrix())
    original.forward(matrix())
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)


def test_a_class_set_on_the_compiled_module_is_that_of_the_original():
    original, fast = compiled()
    fast(matrix())
    wrapped = type("Wrapped", (Net,), {"forward": lambda self, x: self.layer(x) * 5})
    fast.__class__ = wrapped
    assert type(original) is wrapped and isinstance(fast, wrapped)
    assert_same(fast(matrix()), original.layer(matrix()) * 5)
    assert_same(fast.forward(matrix()), original.layer(matrix()) * 5)


@pytest.mark.parametrize("on_original", [True, False])
def test_parametrized_modules_are_followed(on_original):
    original = nn.Linear(3, 3)
    fast = magpy.compile(original, backend="eager")
    fast(matrix())
    parametrizations.weight_norm(original if on_original else fast)
    assert_same(fast(matrix()), original(matrix()))
    assert_same(fast.weight, original.weight)
    assert parametrize.is_parametrized(fast)
    parametrize.remove_parametrizations(fast, "weight")
    assert type(original) is nn.Linear
    assert_same(fast(matrix()), original(matrix()))


def test_state_in_slots_and_in_native_bases_is_the_originals():
    class Slotted(nn.Module):
        __slots__ = ("rate",)

        def forward(self, x):
            self.rate += 1
            return x * self.rate

    class Dictionary(nn.Module, dict):
        def forward(self, x):
            return x * len(self)

    original, fast = compiled(Slotted)
    original.rate = 1
    assert [fast(tensor(1)).item(), fast(tensor(1)).item()] == [2, 3] and fast.rate == 3
    fast.rate = 7
    assert original.rate == 7
    del fast.rate
    assert not hasattr(original, "rate")
    original, fast = compiled(Dictionary)
    original["a"] = 1
    fast["b"] = 2
    assert len(original) == len(fast) == 2 and dict(fast) == {"a": 1, "b": 2} and "b" in fast
    assert_same(fast(tensor(1)), tensor(2))


def test_a_getattribute_of_the_program_does_not_see_what_compiling_needs():
    seen = []

    class Watching(nn.Module):
        def __getattribute__(self, name):
            seen.append(name)
            return super().__getattribute__(name)

        def forward(self, x):
            return x + 1

    _, fast = compiled(Watching)
    assert_same([fast(tensor(1)), fast.forward(tensor(1))], [tensor(2), tensor(2)])
    assert not any("magpy" in name or name == "_orig_mod" for name in seen)


def test_a_metaclass_of_the_program_does_not_see_what_calls_look_up():
    seen = []

    class Meta(type):
        def __getattribute__(cls, name):
            seen.append(name)
            return super().__getattribute__(name)

    class Watched(nn.Module, metaclass=Meta):
        def forward(self, x):
            return x + 1

    _, fast = compiled(Watched)
    seen.clear()
    for _ in range(2):
        assert_same([fast(tensor(1)), fast.forward(tensor(1))], [tensor(2), tensor(2)])
        assert seen == []


def test_the_original_is_destroyed_once():
    destroyed = []

    class Model(nn.Module):
        def __del__(self):
            destroyed.append(1)

        def forward(self, x):
            return x

    original, fast = compiled(Model)
    del fast
    gc.collect()
    assert not destroyed
    del original
    gc.collect()
    assert destroyed == [1]


def test_copies_keep_references_of_the_original_to_the_compiled_module():
    original, fast = compiled()
    vars(original)["trainer"] = {"model": fast}
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert twin.trainer["model"]._orig_mod is twin._orig_mod is not original
        assert_same(twin(matrix()), original(matrix()))
    shallow = copy.copy(fast)
    assert shallow._orig_mod is not original and shallow.layer is original.layer
    assert magpy.cache_info(shallow) == (0, 0, 0, 0, 0, 0)


def test_checkpoint_keys_have_no_prefix():
    original, fast = compiled()
    assert list(nn.Sequential(fast).state_dict()) == ["0.layer.weight", "0.layer.bias"]
    assert fast.state_dict().keys() == original.state_dict().keys()


# --- tracers, wrappers ----------------------------------------------------------------------------

TRACERS = {
    "symbolic_trace": lambda module: torch.fx.symbolic_trace(module),
    "script": lambda module: torch.jit.script(module),
    "trace": lambda module: torch.jit.trace(module, matrix()),
    "export": lambda module: torch.export.export(module, (matrix(),)).module(),
    "DataParallel": lambda module: nn.DataParallel(module),
    "torch.compile": lambda module: torch.compile(module, backend="eager"),
}


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("name", TRACERS)
def test_a_compiled_module_is_traced_as_the_original(name, inside):
    original, fast = compiled()
    module = nn.Sequential(fast) if inside else fast
    for _ in range(2):  # without records, and with them
        assert_same(TRACERS[name](module)(matrix()), original(matrix()))
        assert_same(fast(matrix()), original(matrix()))
    if inside:
        assert module[0] is fast


@pytest.mark.parametrize(
    "stance", ["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]
)
def test_symbolic_tracing_keeps_a_leaf_that_is_compiled(stance):
    fast = magpy.compile(nn.Linear(3, 3), backend="eager")
    with torch.compiler.set_stance(stance):
        traced = torch.fx.symbolic_trace(nn.Sequential(fast, nn.ReLU()))
    assert [node.op for node in traced.graph.nodes].count("call_module") == 2
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 1, 0)
    assert_same(traced(matrix()), torch.relu(fast(matrix())))
    assert magpy.cache_info(fast).hits == 1


def test_a_replica_is_one_of_the_original():
    original, fast = compiled()
    replica = fast._replicate_for_data_parallel()
    assert type(replica) is Net and replica.layer is original.layer


def test_a_graph_module_that_is_compiled_again_is_followed():
    original = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    fast = magpy.compile(original, backend="eager")
    fast.forward(tensor(-1))
    nodes = list(fast.graph.nodes)
    nodes[-1].args = (nodes[0],)
    fast.recompile()
    for call in (original, fast, fast.forward):
        assert_same(call(tensor(-1)), tensor(-1))


def test_a_forward_that_a_framework_replaces_is_run():
    """As ``accelerate`` does for mixed precision, and undoes."""
    original, fast = compiled()
    expected = original(matrix())
    kept = fast.forward
    function = fast.forward.__func__
    fast.forward = (lambda self, x: function(self, x) + 1).__get__(fast)
    for _ in range(2):
        assert_same(fast(matrix()), expected + 1)
    fast.forward = kept
    for _ in range(2):
        assert_same(fast(matrix()), expected)
    del fast.forward
    assert fast.forward == kept
    assert_same(fast(matrix()), expected)


# --- calls that go past the call of the module ----------------------------------------------------


@pytest.mark.parametrize("method", ["generate", "refine"])
def test_calls_inside_a_method_are_compiled(method):
    original, fast = compiled()
    expected = getattr(original, method)(matrix(), 4)
    with torch.no_grad():
        assert_same(getattr(fast, method)(matrix(), 4), expected.detach())
        assert magpy.cache_info(fast).hits == 3
    assert_same(getattr(fast, method)(matrix(), 4), expected)


def test_reports_cover_the_calls_of_forward():
    _, fast = compiled()
    fast(matrix())
    fast.forward(matrix())
    fast.forward(matrix())
    assert magpy.cache_info(fast)[:3] == (1, 2, 2)
    assert magpy.cache_info(fast.forward) == (1, 1, 1, 1, 0, 0)
    assert magpy.compile(fast.forward, backend="eager") == fast.forward
    assert magpy.explain(fast.forward, matrix()).graph_count == 1
    magpy.reset(fast)
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)


def lightning_like(package):
    """A class that the table of frameworks knows."""

    class LightningModule(nn.Module):
        __module__ = f"{package}.core.module"

        def training_step(self, batch):
            raise NotImplementedError

    return LightningModule


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.logged = []

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch):
        self.logged.append("loss")
        return self(batch).square().mean()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_step_of_a_lightning_module_is_one_program(package):
    model = type("Model", (Step, lightning_like(package)), {})
    original, fast = compiled(model)
    expected = original.training_step(matrix())
    for _ in range(3):
        assert_same(fast.training_step(matrix()), expected)
    assert fast.logged == ["loss"] * 4
    info = magpy.cache_info(fast.training_step)
    assert (info.hits, info.graphs) == (2, 1)
    # Lightning asks whether a method is overridden by comparing code.
    assert fast.training_step.__wrapped__.__code__ is Step.training_step.__code__
    assert magpy.explain(fast.training_step, matrix()).graph_count == 1


def test_the_step_of_another_module_runs_natively_and_its_calls_are_compiled():
    _, fast = compiled(Step)
    for _ in range(2):
        fast.training_step(matrix())
    assert magpy.cache_info(fast).hits == 1 and fast.logged == ["loss"] * 2


def test_a_step_is_not_held_to_fullgraph():
    class Model(Step, lightning_like("lightning.pytorch")):
        def training_step(self, batch):
            return magpy.disable(lambda x: x)(self(batch))

    _, fast = compiled(Model, fullgraph=True)
    for _ in range(2):
        fast.training_step(matrix())
    assert magpy.cache_info(fast).hits == 1


# --- compiled objects inside recorded programs ----------------------------------------------------


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.weight = nn.Parameter(torch.ones(3))

    @property
    def twice(self):
        return self.count * 2

    def bump(self):
        self.count += 1

    def forward(self, x):
        self.count += 1
        return x * self.count + self.weight


class Parent(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.child = child

    def forward(self, x):
        child = self.child
        y = child(x) + child.count
        child.count += 1
        setattr(child, "count", getattr(child, "count") + 2)  # noqa: B009, B010
        child.bump()
        y = y * child.twice + child.forward(y) * child.weight
        y = getattr(child, "forward")(y)  # noqa: B009
        return y + len(list(child.parameters())) + isinstance(child, Counter)


def test_a_program_reads_and_writes_the_state_of_the_original_under_both_names():
    child, eager = Counter(), Counter()
    inner = magpy.compile(child, backend="eager")
    fast, expected = magpy.compile(Parent(inner), backend="eager"), Parent(eager)
    for i in range(5):
        assert_same(fast(matrix() + i), expected(matrix() + i))
        assert child.count == inner.count == eager.count
    assert magpy.cache_info(fast).hits == 4


def test_a_method_called_in_a_program_has_the_compiled_module_as_self():
    _, inner = compiled()

    def program(x):
        found = [
            inner.eval() is inner,
            next(inner.modules()) is inner,
            inner.layer in inner.modules(),
        ]
        return inner.refine(x, 1) + inner.generate(x, 1), found

    fast = magpy.compile(program, backend="eager")
    for _ in range(2):
        result, found = fast(matrix())
        assert found == [True, True, True]
        assert_same(result, program(matrix())[0])
    assert magpy.cache_info(fast) == (1, 1, 1, 1, 0, 0)


def test_a_program_reads_slots_and_native_state_of_a_compiled_object():
    fast_scale = magpy.compile(SlottedScale(3), backend="eager")

    def program(x):
        fast_scale.rate += 1
        return fast_scale(x) * fast_scale.rate

    fast = magpy.compile(program, backend="eager")
    for i in range(4):
        assert_same(fast(tensor(1)), tensor((5 + i) * (4 + i)))
    assert fast_scale._orig_mod.rate == 7 and magpy.cache_info(fast).hits >= 2


def test_a_record_knows_which_arguments_share_their_state():
    def program(a, b, x):
        a.count += 1
        x = x * b.count
        b.count += 5
        return x + a.count

    first, second = Counter(), Counter()
    of_first, of_second = (magpy.compile(m, backend="eager") for m in (first, second))
    fast = magpy.compile(program, backend="eager")
    pairs = [(of_first, second), (of_second, second), (second, of_second), (of_second, of_second)]
    pairs += [(of_first, of_second), (of_second, of_first), (second, second)]
    for a, b in [pair for pair in pairs for _ in range(2)]:
        plain = {of_first: first, of_second: second}
        memo = {}
        twins = [copy.deepcopy(plain.get(m, m), memo) for m in (a, b)]
        assert_same(fast(a, b, tensor(1)), program(*twins, tensor(1)))
        assert (a.count, b.count) == (twins[0].count, twins[1].count)
    assert magpy.cache_info(fast).hits >= 3


# --- torch's controls -----------------------------------------------------------------------------

COPIES = {
    "itself": lambda fast: fast,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda fast: pickle.loads(pickle.dumps(fast)),
}


@pytest.mark.parametrize(
    "control", [torch.compiler.disable, torch.compile], ids=["disable", "compile"]
)
@pytest.mark.parametrize("name", COPIES)
def test_a_control_of_torchs_compiler_applies_to_the_original_of_each_copy(name, control):
    original, fast = compiled()
    twin = COPIES[name](fast)
    wrapped = control(twin)
    assert wrapped._orig_mod is twin._orig_mod
    assert not any("magpy" in name or "dynamo" in name for name in vars(original))


def test_a_control_of_torchs_compiler_applies_to_the_original_of_an_object_or_a_class():
    fast = magpy.compile(Scale(3), backend="eager")
    assert_same(torch.compiler.disable(fast)(tensor(1)), tensor(4))
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)

    class Made:
        pass

    made = magpy.compile(Made, backend="eager")
    assert torch.compiler.disable(made) is Made
    subclass = type("Subclass", (made,), {})
    assert torch.compiler.disable(subclass) is subclass


def test_a_disabled_forward_runs_natively_from_every_call():
    class Model(nn.Module):
        @torch.compiler.disable
        def forward(self, x):
            return x + 1

    _, fast = compiled(Model)
    for _ in range(2):
        assert_same([fast(tensor(1)), fast.forward(tensor(1))], [tensor(2), tensor(2)])
    assert magpy.cache_info(fast.forward) == (0, 0, 0, 0, 2, 0)
    outer = magpy.compile(lambda x: fast.forward(x * 2) * 3, backend="eager")
    assert_same([outer(tensor(1)), outer(tensor(1))], [tensor(9), tensor(9)])
    assert magpy.cache_info(outer).graphs == 2


# --- callable objects, classes, functions ---------------------------------------------------------


class Scale:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x, *, extra=1):
        return x * self.rate + extra

    def __len__(self):
        return 7

    def describe(self):
        return f"scales by {self.rate}"


class SlottedScale:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x):
        return x * self.rate + 1


@pytest.mark.parametrize("cls", [Scale, SlottedScale])
def test_a_compiled_callable_object_keeps_attributes_and_type(cls):
    original = cls(3)
    fast = magpy.compile(original, backend="eager")
    for _ in range(2):
        assert_same(fast(tensor(1)), tensor(4))
    assert isinstance(fast, cls) and fast.__class__ is cls and fast.rate == 3
    fast.rate = 5
    assert original.rate == 5
    assert_same(fast(tensor(1)), tensor(6))
    assert inspect.signature(fast) == inspect.signature(original)
    assert magpy.cache_info(fast).hits == 1
    assert magpy.compile(fast, backend="eager") is fast
    twin = pickle.loads(pickle.dumps(fast))
    assert_same(twin(tensor(1)), tensor(6))
    assert magpy.cache_info(twin).misses == 1


def test_methods_of_a_compiled_callable_object_are_the_originals():
    fast = magpy.compile(Scale(3), backend="eager")
    assert len(fast) == 7 and fast.describe() == "scales by 3"


class Config:
    made = 0

    def __init__(self, size):
        self.table = torch.ones(size) * 2

    @classmethod
    def square(cls, size):
        return cls(size * size)


def test_a_compiled_method_is_bound_to_its_object():
    net = Net()
    net.forward = magpy.compile(net.forward, backend="eager")
    x = matrix()
    expected = [net(x) for _ in range(3)][-1]
    assert inspect.ismethod(net.forward) and net.forward.__self__ is net
    assert inspect.signature(net.forward) == inspect.signature(Net().forward)
    assert magpy.cache_info(net.forward).hits == 2
    copies = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    with torch.no_grad():
        net.layer.weight.zero_()
    for one in copies:
        for _ in range(2):
            assert_same(one(x), expected)


def scaled(x, factor, *, shift=2):
    return x * factor + shift


@pytest.mark.parametrize(
    "make",
    [
        lambda: functools.partial(scaled, factor=3),
        lambda: functools.partial(functools.partial(scaled, shift=1), factor=2),
        lambda: functools.partial(Net().forward, factor=3.0),
        lambda: functools.partial(Net()),
    ],
    ids=["function", "nested", "method", "module"],
)
def test_a_compiled_partial_is_one_of_the_compiled_function(make):
    original = make()
    original.mark = "mine"
    fast = magpy.compile(original)
    for x in (torch.ones(2, 3), torch.zeros(2, 3)):
        assert_same(fast(x), original(x))
    assert type(fast) is functools.partial and fast.mark == "mine"
    assert (fast.args, fast.keywords) == (original.args, original.keywords)
    assert inspect.signature(fast) == inspect.signature(original)
    assert magpy.cache_info(fast).hits == magpy.cache_info(copy.copy(fast)).hits == 1
    assert magpy.compile(fast) is fast
    assert magpy.compile(fast, disable=True).func == original.func
    assert magpy.explain(fast, torch.ones(2, 3)).segments
    magpy.reset(fast)
    assert magpy.cache_info(fast).hits == 0


def test_a_partial_of_native_code_is_compiled_as_a_function():
    fast = magpy.compile(functools.partial(torch.add, torch.ones(3), alpha=2))
    for _ in range(2):
        assert_same(fast(torch.ones(3)), torch.full((3,), 3.0))
    assert magpy.cache_info(fast).hits == 1


def test_a_compiled_function_has_the_attributes_of_the_original():
    def program(x):
        return x * program.factor

    program.factor = 3
    fast = magpy.compile(program, backend="eager")
    assert fast.factor == 3
    for program.factor in (3, 5, 5):
        assert_same(fast(tensor(1)), tensor(program.factor))


async def awaited(x):
    return x * 2


def yielding(x, *, factor=2):
    yield x * factor


async def yielding_later(x):
    yield x


@pytest.mark.parametrize("function", [awaited, yielding, yielding_later])
def test_a_function_that_runs_after_its_call_stays_one(function):
    with pytest.warns(magpy.MagpyWarning, match="its body runs after the call") as caught:
        fast = magpy.compile(function, backend="eager")
    assert caught[0].filename == __file__
    for asks in (
        inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction,
    ):  # fmt: skip
        assert asks(fast) == asks(function)
    assert inspect.signature(fast) == inspect.signature(function)
    assert magpy.compile(fast, backend="eager") is fast
    assert magpy.cache_info(fast).hits == 0


def test_results_of_functions_that_run_after_their_calls():
    with pytest.warns(magpy.MagpyWarning):
        fast, later = (magpy.compile(f, backend="eager") for f in (yielding, awaited))
    for _ in range(2):
        assert_same([*fast(tensor(1), factor=3)], [tensor(3)])
        assert_same(asyncio.run(later(tensor(1))), tensor(2))
    whole = magpy.compile(lambda x: sum(fast(x)), backend="eager", fullgraph=True)
    assert_same([whole(tensor(1)), whole(tensor(1))], [tensor(2), tensor(2)])
    assert magpy.cache_info(whole).hits == 1


def test_a_compiled_cached_function_has_the_methods_of_a_cache():
    fast = magpy.compile(functools.lru_cache(maxsize=3)(torch.ones), backend="eager")
    assert fast(2) is fast(2)
    assert fast.cache_info().hits >= 1 and fast.cache_parameters()["maxsize"] == 3
    first = fast(2)
    fast.cache_clear()
    assert fast(2) is not first


def test_methods_of_an_optimizer_are_what_a_scheduler_expects():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 1.0)
    optimizer.step = magpy.compile(optimizer.step, backend="eager")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        weight.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()
    assert_same(weight.detach(), torch.full((2,), 1 - 1.75))


class Decorated:
    count = 3

    @magpy.compile(backend="eager")
    @classmethod
    def scaled(cls, x):
        return x * cls.count

    @magpy.compile(backend="eager")
    @staticmethod
    def doubled(x):
        return x * 2

    @magpy.compile(backend="eager")
    @property
    def ones(self):
        return torch.ones(self.count)

    @magpy.compile(backend="eager")
    @functools.cached_property
    def zeros(self):
        return torch.zeros(self.count)


def test_a_decorated_descriptor_is_one_of_compiled_functions():
    made, x = Decorated(), tensor(1, 2)
    for _ in range(3):
        assert_same((made.scaled(x), Decorated.scaled(x)), (x * 3, x * 3))
        assert_same((made.doubled(x), Decorated.doubled(x)), (x * 2, x * 2))
        assert_same(made.ones, torch.ones(3))
    assert made.zeros is made.zeros
    assert magpy.cache_info(Decorated.scaled).hits == magpy.cache_info(Decorated.doubled).hits == 5
    assert magpy.cache_info(Decorated.ones.fget).hits == 2
    with pytest.raises(AttributeError):
        made.ones = 1


def test_compiling_a_class_of_modules_says_that_calls_of_its_instances_are_not_compiled():
    with pytest.warns(magpy.MagpyWarning, match=r"compile\(Net\(…\)\)") as caught:
        fast = magpy.compile(Net, backend="eager")
    assert caught[0].filename == __file__ and isinstance(fast(), Net)


def test_a_compiled_class_is_the_class():
    fast = magpy.compile(Config, backend="eager")
    made = fast(2)
    assert type(made) is Config and isinstance(made, fast) and isinstance(Config(1), fast)
    assert issubclass(Config, fast) and issubclass(fast, Config) and inspect.isclass(fast)
    assert inspect.signature(fast) == inspect.signature(Config)
    assert_same(fast.square(2).table, torch.ones(4) * 2)
    fast.made = 3
    assert Config.made == 3
    del fast.made
    assert magpy.compile(fast, backend="eager") is fast
    assert magpy.cache_info(fast).misses == 2
    Config.made = 0


def test_subclasses_of_a_compiled_class_are_classes_of_the_program():
    fast = magpy.compile(Config, backend="eager")
    announced = []

    class Named(fast):
        def __init__(self, size, name):
            super().__init__(size)
            self.name = name

        def __init_subclass__(cls):
            announced.append(cls)

        def __call__(self, x):
            return x + self.table

    class Further(Named):
        pass

    made = Further(2, "a")
    assert made.name == "a" and type(made) is Further and announced == [Further]
    assert isinstance(made, Config) and isinstance(made, fast)
    assert not isinstance(Config(2), Named) and not issubclass(Config, Named)
    assert inspect.signature(Named) == inspect.signature(Named.__init__.__get__(made))
    callable_one = magpy.compile(made, backend="eager")
    assert callable_one is not made
    assert_same(callable_one(torch.ones(2)), torch.full((2,), 3.0))


def test_a_program_makes_instances_of_a_compiled_class():
    fast_class = magpy.compile(Config, backend="eager")
    fast = magpy.compile(lambda x: fast_class(2).table * x, backend="eager")
    for _ in range(2):
        assert_same(fast(tensor(1, 2)), tensor(2, 4))
    assert magpy.cache_info(fast).hits == 1


@magpy.compile(backend="eager")
def add_one(x):
    return x + 1


def call_there(function, results):
    results.put((function is add_one, function(torch.ones(2)).tolist()))


def test_a_compiled_function_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(add_one)) is add_one


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_worker_gets_a_compiled_function(method):
    context = multiprocessing.get_context(method)
    results = context.Queue()
    worker = context.Process(target=call_there, args=(add_one, results))
    worker.start()
    assert results.get(timeout=120) == (True, [2, 2])
    worker.join()
