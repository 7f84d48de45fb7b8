"""Lookup of annotations: from the called object to the operation and its annotation."""

import builtins
import collections
import functools
import logging
import math
import operator
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy
import pytest
import torch
import yaml

from magpy_like.annotation import NULL, RelationKind, ValueRead, annotate, lookup, resolve
from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.annotation.data_dependent_sizes import depends_on_data
from magpy_like.annotation.lookup import Table, load_annotations
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.autograd import custom_function_calls

ITEMS = [1]
TENSOR = torch.ones(2)
GETTER = operator.itemgetter(0)
CACHED = functools.lru_cache(len)
RANDOM = random.Random(0)


@pytest.mark.parametrize(
    ("call", "operation", "receiver"),
    [
        (len, len, NULL),
        (list, list, NULL),
        (ITEMS.append, list.append, ITEMS),
        (ITEMS.__len__, list.__len__, ITEMS),
        (list.append, list.append, NULL),
        (TENSOR.relu, torch.Tensor.relu, TENSOR),
        (TENSOR.add_, torch.Tensor.add_, TENSOR),
        (torch.relu, torch.relu, NULL),
        (torch._C._nn.gelu, torch._C._nn.gelu, NULL),
        (dict.fromkeys, dict.__dict__["fromkeys"], dict),
        (collections.Counter.fromkeys, collections.Counter.fromkeys.__func__, collections.Counter),
        (object.__new__, object.__new__, NULL),
        (list.mro, type.__dict__["mro"], list),
        (GETTER, operator.itemgetter.__call__, GETTER),
        (RANDOM.random, random.Random.__mro__[1].random, RANDOM),
        (RANDOM.choice, random.Random.choice, RANDOM),
        (torch.ops.aten.relu.default, torch.ops.aten.relu.default, NULL),
        (numpy.add, numpy.add, NULL),
        (CACHED, CACHED, NULL),
    ],
)
def test_call_resolves_to_operation_and_receiver(call, operation, receiver) -> None:
    found, bound = resolve(call)
    assert found is operation
    assert bound is receiver


def test_partial_resolves_to_itself() -> None:
    partial = functools.partial(len, [])
    assert resolve(partial) == (partial, NULL)


def test_super_method_resolves_to_the_base_class() -> None:
    class Sub(dict):
        def get(self, key):
            return resolve(super().get)

        def __getitem__(self, key):
            return resolve(super().__getitem__)

    sub = Sub()
    assert sub.get(1) == (dict.get, sub)
    assert sub[1] == (dict.__getitem__, sub)


def test_method_resolves_to_the_defining_class() -> None:
    ordered = collections.OrderedDict()
    assert resolve(ordered.pop)[0] is collections.OrderedDict.pop
    assert resolve(ordered.get)[0] is dict.get


def test_callable_instance_resolves_to_its_call_method() -> None:
    class Callable:
        def __call__(self) -> None: ...

    instance = Callable()
    assert resolve(instance) == (Callable.__call__, instance)


def test_input_properties_equal_the_papers_example() -> None:
    """MagPy, section 5.2: list.append changes the list and only moves the value."""
    append = lookup(list.append)
    assert append.pure_closure
    assert append.input(0).in_place
    assert not append.input(1).in_place
    assert append.input(1).value_read is ValueRead.NONE
    assert lookup(math.sin).input(0).value_read is ValueRead.ALL


def test_output_relation_names_the_access_path() -> None:
    relation = lookup(dict.get).output.relation
    assert (relation.kind, relation.of, relation.key, relation.default) == (
        RelationKind.KEY, 0, 1, 2,
    )  # fmt: skip
    assert lookup(getattr).output.relation.kind is RelationKind.ATTRIBUTE
    written = lookup(setattr).output.relation
    assert (written.access, written.value) == ("write", 2)


@pytest.mark.parametrize(
    "operation",
    [torch.relu, torch.Tensor.relu, torch.cat, torch.zeros, torch._C._nn.linear,
     torch.ops.aten.relu.default, torch.ops.aten.relu, torch.Tensor.T, torch.Tensor.__getitem__,
     operator.add, custom_function_calls[0]],
)  # fmt: skip
def test_tensor_operators_are_nodes(operation) -> None:
    assert lookup(operation).as_op_node


@pytest.mark.parametrize(
    "operation", [torch.Tensor.add_, torch.relu_, torch.Tensor.copy_, torch.Tensor.__iadd__]
)
def test_in_place_operators_mutate_and_return_their_receiver(operation) -> None:
    annotation = lookup(operation)
    assert annotation.as_op_node
    assert annotation.input(0).in_place
    assert annotation.output.relation.kind is RelationKind.SELF


def test_out_argument_is_mutated() -> None:
    assert lookup(torch.add).input("out").in_place


def test_running_statistics_are_mutated() -> None:
    assert lookup(torch.batch_norm).input(3).in_place
    assert lookup(torch.batch_norm).input(4).in_place


@pytest.mark.parametrize(
    "operation",
    [torch.Tensor.size, torch.Tensor.dim, torch.Tensor.stride, torch.Tensor.numel,
     torch.Tensor.is_contiguous, torch.Tensor.shape, torch.Tensor.dtype, torch.Tensor.device,
     torch.is_tensor, torch.is_floating_point, isinstance, callable],
)  # fmt: skip
def test_metadata_reads_no_data(operation) -> None:
    annotation = lookup(operation)
    assert annotation.pure_closure
    assert not annotation.as_op_node
    assert annotation.input(0).value_read in (ValueRead.NONE, ValueRead.TYPE)


@pytest.mark.parametrize(
    "operation",
    [print, input, open, eval, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy,
     torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.data_ptr,
     torch.Tensor.backward, torch.Tensor.register_hook, torch.set_rng_state,
     time.time],
)  # fmt: skip
def test_dynamic_operations_have_a_reason(operation) -> None:
    annotation = lookup(operation)
    assert annotation.dynamic
    assert annotation.reason and annotation.detail


def test_random_draws_and_seeds_are_repeatable_but_states_are_not() -> None:
    for draw in (random.Random.choice, random.Random.randint, numpy.random.RandomState.randn):
        assert lookup(draw).random
    for seed in (random.seed, numpy.random.seed, torch.manual_seed, numpy.random.default_rng):
        assert lookup(resolve(seed)[0]).random
    for state in (random.getstate, numpy.random.set_state, torch.get_rng_state):
        assert lookup(resolve(state)[0]).dynamic


def test_state_setters_and_getters_are_annotated() -> None:
    assert lookup(torch._C._set_grad_enabled).global_state
    assert lookup(torch.set_autocast_enabled).global_state
    assert lookup(torch.is_grad_enabled).state_read
    assert lookup(torch._C._get_cudnn_enabled).state_read


def test_consumed_iterator_is_mutated() -> None:
    assert lookup(sum).changes(0, iter([1]))
    assert not lookup(sum).changes(0, [1])
    assert not lookup(list.append).changes(1, iter([1]))


def test_called_inputs_are_annotated() -> None:
    assert lookup(map).calls == (0,)
    assert lookup(sorted).calls == ("key",)
    assert lookup(functools.reduce).calls == (0,)


def test_reading_and_assigning_a_property_are_separate_operations() -> None:
    assert lookup(torch.Tensor.real).as_op_node
    assert not lookup(torch.Tensor.real).input(0).in_place
    assert lookup(torch.Tensor.real, write=True).input(0).in_place
    assert lookup(torch.Tensor.shape, write=True) is None


def test_data_dependent_sizes_are_annotated() -> None:
    def has_sizes_from_data(function, *args, **kwargs):
        return depends_on_data(lookup(function).output.shape_from_data, args, kwargs)

    x, mask = torch.ones(3), torch.tensor([True, False, True])
    getitem, interleave = torch.Tensor.__getitem__, torch.repeat_interleave
    one_hot = torch._C._nn.one_hot
    assert has_sizes_from_data(getitem, x, mask)
    assert has_sizes_from_data(getitem, x, (None, mask))
    assert not has_sizes_from_data(getitem, x, torch.tensor([0, 1]))
    assert not has_sizes_from_data(getitem, x, True)
    assert has_sizes_from_data(torch.nonzero, x)
    assert has_sizes_from_data(torch.where, mask)
    assert not has_sizes_from_data(torch.where, mask, x, x)
    assert has_sizes_from_data(interleave, x, torch.tensor([1, 2, 3]))
    assert not has_sizes_from_data(interleave, x, 2)
    assert not has_sizes_from_data(interleave, x, x.long(), output_size=3)
    assert has_sizes_from_data(one_hot, x.long())
    assert has_sizes_from_data(one_hot, x.long(), -1)
    assert not has_sizes_from_data(one_hot, x.long(), 4)


def test_python_function_is_annotated_by_annotate_only() -> None:
    def function() -> None: ...

    assert lookup(function) is None
    annotate(function, pure_closure=True, inputs={0: "TYPE"}, outputs={"relation": "SELF"})
    annotation = lookup(function)
    assert annotation.input(0).value_read is ValueRead.TYPE
    assert annotation.output.relation.kind is RelationKind.SELF
    assert Path(annotation.source.rpartition(":")[0]) == Path(__file__)


def test_annotated_objects_are_kept_alive() -> None:
    def function() -> None: ...

    annotate(function, pure_closure=True)
    reference = weakref.ref(function)
    del function
    assert lookup(reference()).pure_closure


@pytest.mark.parametrize("reason", ["IO", SplitReason.IO])
def test_reason_is_a_name_or_a_member(reason) -> None:
    def function() -> None: ...

    annotate(function, pure_closure=False, reason=reason, detail="writes to a socket")
    cause = lookup(function).split_cause("function", SplitReason.DYNAMIC_OPERATION)
    assert cause == (SplitReason.IO, "calls function, which writes to a socket", "function")


def test_lookup_does_not_keep_objects_alive() -> None:
    def function() -> None: ...

    lookup(function)
    reference = weakref.ref(function)
    del function
    assert reference() is None


def test_user_file_overrides_shipped_annotations(tmp_path: Path) -> None:
    path = tmp_path / "user.yaml"
    path.write_text(
        "operations:\n  - namespace: math\n    rules:\n"
        "      - {names: ['erf*'], is: dynamic, reason: IO, detail: mine}\n"
    )
    table = Table()
    table.load_directory(annotations_dir())
    table.load(path)
    assert table.lookup(math.erf).detail == "mine"
    assert table.lookup(math.erfc).detail == "mine"
    assert table.lookup(math.sin).pure_closure


def test_loaded_annotations_are_found_by_lookup(tmp_path: Path) -> None:
    path = tmp_path / "user.yaml"
    path.write_text(
        "operations:\n  - namespace: logging\n    rules:\n"
        "      - {names: [makeLogRecord], pure_closure: false, reason: IO, detail: mine}\n"
    )
    load_annotations(path)
    assert lookup(logging.makeLogRecord).detail == "mine"


def test_threads_find_annotations_while_another_one_loads_them() -> None:
    table, started, found = Table(strict=False), threading.Event(), []

    def bind(rule):
        started.set()
        time.sleep(0.001)
        return Table._bind(table, rule)

    table._bind = bind  # type: ignore[method-assign]
    first = threading.Thread(target=table.lookup, args=(len,))
    first.start()
    started.wait()
    others = [
        threading.Thread(target=lambda: found.append(table.lookup(torch.Tensor.sin)))
        for _ in range(3)
    ]
    for thread in others:
        thread.start()
    for thread in (first, *others):
        thread.join()
    assert len(found) == 3 and None not in found


def test_modules_imported_later_are_annotated_on_import(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "imported_later.py").write_text("def f(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.yaml").write_text(
        "operations:\n  - namespace: imported_later\n    rules:\n"
        "      - {names: [f], pure_closure: true}\n"
    )
    table = Table()
    table.load_directory(tmp_path)
    import imported_later

    assert table.lookup(imported_later.f).pure_closure


NATIVE = (
    type(len), type(list.append), type(list.__len__), type(dict.__dict__["fromkeys"]), type
)  # fmt: skip


@pytest.mark.parametrize(
    "namespace",
    [builtins, list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, bool,
     range, slice, collections.deque, collections.OrderedDict, collections.defaultdict, math,
     operator, time, torch._C._VariableFunctionsClass, torch._C._nn, torch._C._linalg,
     torch._C.TensorBase],
    ids=lambda namespace: namespace.__name__,
)  # fmt: skip
def test_every_native_operation_of_a_namespace_is_annotated(namespace) -> None:
    names = dir(namespace) if not isinstance(namespace, type) else list(vars(namespace))
    missing = []
    for name in names:
        member = vars(namespace).get(name)
        member = member.__func__ if isinstance(member, staticmethod) else member
        if isinstance(member, NATIVE) and lookup(member) is None:
            missing.append(name)
    known = {"copyright", "credits", "exit", "quit", "license", "help", "__loader__"}
    assert set(missing) <= known | {"__class_getitem__"}


def test_loading_all_annotations_takes_a_small_part_of_importing_torch() -> None:
    program = (
        "import time\n"
        "begin = time.process_time()\n"
        "import torch\n"
        "imported = time.process_time() - begin\n"
        "import magpy_like.annotation.loader\n"
        "from magpy_like.annotation.annotation_files import annotations_dir\n"
        "from magpy_like.annotation.lookup import Table\n"
        "begin = time.process_time()\n"
        "Table().load_directory(annotations_dir())\n"
        "print((time.process_time() - begin) / imported)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert float(answer.stdout) < 0.15


@pytest.mark.parametrize("training", [False, True])
def test_running_statistics_are_written_in_training_only(training):
    args = (torch.ones(2, 3), None, None, torch.zeros(3), torch.ones(3), training, 0.1, 1e-5, False)
    annotation = lookup(torch.batch_norm)
    assert [annotation.writes_to(i, args) for i in range(5)] == [False] * 3 + [training] * 2
    assert annotation.writes_to("out", args[:5])


@pytest.mark.parametrize(
    "path", sorted(annotations_dir().glob("*.yaml")), ids=lambda path: path.name
)
def test_files_are_valid_for_every_yaml_parser(path):
    """PyYAML built without libyaml rejects plain question marks that libyaml accepts."""
    assert yaml.safe_load(path.read_text(encoding="utf-8"))
