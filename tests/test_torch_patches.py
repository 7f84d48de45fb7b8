"""Changes to torch and Python at run time are undone, whatever other threads do."""

import contextlib
import gc
import linecache
import logging

import pytest
import torch

from magpy_like.torch_patches import (
    Compiling,
    add_collection_callbacks,
    no_garbage_collection,
    register_source,
    remove_collection_callbacks,
    rewriting_ptx,
    silent_fake_tensor_errors,
)

LOG = logging.getLogger("torch._subclasses.fake_tensor")


def test_concurrent_silencing_restores_torchs_logger():
    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    LOG.addHandler(handler)
    try:
        with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
            one.enter_context(silent_fake_tensor_errors())
            other.enter_context(silent_fake_tensor_errors())
            LOG.error("unheard")
            one.close()
        LOG.error("heard")
    finally:
        LOG.removeHandler(handler)
    assert [record.getMessage() for record in heard] == ["heard"]
    assert not LOG.disabled


def test_is_compiling_stays_set_until_the_last_region_is_left():
    one, other = Compiling(), Compiling()
    with one:
        with other:
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
        one.leave()
        one.leave()
        assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()


def test_is_compiling_is_hidden_from_programs_that_must_not_observe_it():
    with Compiling(reports=False):
        assert not torch.compiler.is_compiling()


def test_collection_callbacks_enclose_those_of_the_program():
    events = []
    before, program, after = (lambda *_, n=n: events.append(n) for n in ("before", "own", "after"))
    kept = list(gc.callbacks)
    gc.callbacks.append(program)
    add_collection_callbacks(before, after)
    try:
        gc.collect()
    finally:
        remove_collection_callbacks(before, after)
        gc.callbacks.remove(program)
    assert events == ["before", "own", "after"] * 2  # start and stop
    assert gc.callbacks == kept


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_enabled_again_only_if_it_was(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with no_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_source_of_generated_code_is_found():
    register_source("<test of register_source>", "a = 1\nb = 2\n")
    linecache.checkcache()
    assert linecache.getline("<test of register_source>", 2) == "b = 2\n"


def test_ptx_is_rewritten_behind_the_hook_of_the_program(monkeypatch):
    knobs = pytest.importorskip("triton").knobs
    passed = []

    def hook(backend=None, stages=None, *rest):
        passed.append((backend, stages))
        return "key", "hash"

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", hook)
    with rewriting_ptx(str.upper, " ours"), rewriting_ptx(str.upper, " ours"):
        ours = knobs.runtime.add_stages_inspection_hook
        assert ours() == ("key ours", "hash ours")
        stages = {"ptx": lambda source, metadata: source + metadata}
        ours("backend", stages)
        assert stages["ptx"]("a", "b") == "AB"
    assert knobs.runtime.add_stages_inspection_hook is hook
    assert passed == [(None, None), ("backend", stages)]
