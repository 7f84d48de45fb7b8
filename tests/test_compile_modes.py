"""The modes and options of ``compile``: torch.compile's names, checked before anything runs."""

import itertools
import pathlib

import pytest
import torch

import magpy_like as magpy
from magpy_like import compile_modes
from magpy_like.compile_modes import CudaGraphs, compile_settings
from magpy_like.compiler import dynamo_backend
from magpy_like.records.dispatcher_making import UncompiledProgram


def program(x):
    return x + 1


def without_helper(target, **settings):
    return UncompiledProgram(target, "no helper today", **settings)


ENTRIES = [magpy.compile, without_helper]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("mode", ["fast", "", "Default", 1, ["default"]])
def test_unknown_mode_raises_with_the_list_of_modes(entry, mode):
    with pytest.raises(ValueError, match="unknown mode") as error:
        entry(program, mode=mode)
    assert repr(mode) in str(error.value)
    assert all(repr(known) in str(error.value) for known in compile_modes.MODES)


@pytest.mark.parametrize("entry", ENTRIES)
def test_unknown_option_raises_with_the_list_of_options_and_the_closest(entry):
    with pytest.raises(magpy.ArgumentError, match="unknown option") as error:
        entry(program, options={"strict": True, "cudagraphs": True})
    unknown, known = str(error.value).split("there are")
    assert "'cudagraphs'" in unknown and "'strict'" not in unknown
    assert all(repr(name) in known for name in (*compile_modes.OPTIONS, *compile_modes.LIMITS))
    assert "did you mean 'cuda_graphs'?" in known


@pytest.mark.parametrize("entry", ENTRIES)
def test_option_of_inductor_says_whose_it_is(entry):
    with pytest.raises(magpy.ArgumentError, match='of backend="inductor"'):
        entry(program, options={"max_autotune": True})
    magpy.compile(program, backend="inductor", options={"max_autotune": True})


def test_inductors_modes_and_options_are_checked_at_the_call():
    for passed in ({"mode": "max-autotun"}, {"options": {"max_autotun": True}}):
        with pytest.raises(magpy.ArgumentError, match=r"did you mean 'max.autotune'\?"):
            magpy.compile(program, backend="inductor", **passed)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("name", "value", "types"),
    [
        ("cuda_graphs", 1, "bool"),
        ("cuda_graphs", None, "bool"),
        ("strict", "yes", "bool"),
        ("trace", True, "str or PathLike or None"),
    ],
)
def test_option_of_another_type_raises_with_the_types_it_takes(entry, name, value, types):
    with pytest.raises(ValueError, match=f"{name}.*={value!r}: takes {types}"):
        entry(program, options={name: value})


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_mode_is_accepted_with_every_option(entry):
    options = {"cuda_graphs": True, "strict": False, "trace": None}
    for mode in compile_modes.MODES:
        entry(program, mode=mode)
        entry(program, mode=mode, options={**options, "record_limit": 2, "generalise_after": 2})
        entry(program, mode=mode, options={"trace": pathlib.Path("folder")})


def test_modes_are_those_of_torch_compile():
    named = {mode for mode in torch._inductor.list_mode_options() if mode != "lite"}
    assert named == {mode for mode in compile_modes.MODES if mode is not None}


@pytest.mark.parametrize(
    ("modes", "graphs"),
    [
        ([None, "default"], CudaGraphs.IF_FASTER),
        (["reduce-overhead", "max-autotune"], CudaGraphs.ALWAYS),
        (["max-autotune-no-cudagraphs"], CudaGraphs.NEVER),
    ],
)
def test_modes_decide_about_cuda_graphs_unless_the_option_does(modes, graphs):
    for mode, options in itertools.product(modes, (None, {}, {"strict": True})):
        assert compile_settings(mode, options).cuda_graphs is graphs
    for mode in modes:
        assert compile_settings(mode, {"cuda_graphs": True}).cuda_graphs is CudaGraphs.ALWAYS
        assert compile_settings(mode, {"cuda_graphs": False}).cuda_graphs is CudaGraphs.NEVER


def test_strict_is_off_unless_it_is_asked_for():
    assert not compile_settings("default", {}).strict
    assert compile_settings("default", {"strict": True}).strict


def test_other_backends_receive_modes_and_options_that_magpy_does_not_know():
    seen = {}

    def backend(graph, inputs, **passed):
        seen.update(passed)
        return graph

    for entry in ENTRIES:
        entry(program, backend=backend, mode="mine", options={"also mine": 1})
    magpy.compile(program, backend=backend, mode="mine", options={"also mine": 1})(torch.ones(2))
    assert seen == {"mode": "mine", "options": {"also mine": 1}}


def test_torch_compile_with_this_compiler_checks_modes_and_options_too():
    graph = torch.fx.symbolic_trace(program)
    for passed in ({"mode": "fast"}, {"options": {"fast": True}}, {"options": {"strict": 1}}):
        with pytest.raises(ValueError, match="fast|strict"):
            dynamo_backend(graph, [torch.ones(2)], **passed)
