"""Exceptions sent to some threads stop no other thread, and leave no lock held.

Each test has a process of its own, which may hang or crash.
"""

import subprocess
import sys
import textwrap

import pytest

SECONDS = 150
"""After which a process counts as one that hangs."""


def run(*command):
    """The end of a process that runs Python with these arguments."""
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=SECONDS
    )


@pytest.mark.parametrize(
    "options", [("1",), ("2",), ("3", "--cold")], ids=["1", "2", "3, first calls of the process"]
)
def test_threads_that_compile_survive_exceptions_at_random_moments(options):
    ended = run("-m", "tests.interrupts.stress", *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert "failed while attempting to run meta" not in ended.stderr  # torch's log


def run_code(code):
    ended = run("-c", textwrap.dedent(PRELUDE) + textwrap.dedent(code))
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.split()


PRELUDE = """
    import ctypes, faulthandler, importlib.abc, sys, threading
    import magpy_like as magpy
    from magpy_like.interruption import own_work

    faulthandler.dump_traceback_later(30, exit=True)

    class Sent(Exception): ...

    def send(ident):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Sent))

    began, sent = threading.Event(), threading.Event()

    def run_traced(function):
        def run():
            sys.settrace(lambda *event: None)
            function()
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def enter_functions():
        for k in range(100):
            (lambda: k)()
"""


def test_traced_holder_of_the_lock_continues_while_a_waiting_thread_was_sent_an_exception():
    code = """
        from magpy_like.torch_interop.tracing_lock import TRACING_LOCK

        def hold():
            with TRACING_LOCK:
                began.set()
                sent.wait()
                enter_functions()

        def wait():
            began.wait()
            try:
                with TRACING_LOCK:
                    print("traces")
                print("not interrupted")
            except Sent:
                print("interrupted")

        holder, waiting = run_traced(hold), threading.Thread(target=wait)
        waiting.start()
        while "__enter__" not in str(sys._current_frames()[waiting.ident]):
            pass
        send(waiting.ident)
        sent.set()
        holder.join()
        waiting.join()
    """
    assert run_code(code) == ["traces", "interrupted"]


def test_traced_thread_continues_while_an_exception_waits_for_the_end_of_other_own_work():
    code = """
        ended = threading.Event()

        def work():
            try:
                with own_work:
                    began.set()
                    ended.wait()
            except Sent:
                print("interrupted")

        def go_on():
            sent.wait()
            enter_functions()
            print("continued")
            ended.set()

        working, traced = threading.Thread(target=work), run_traced(go_on)
        working.start()
        began.wait()
        send(working.ident)
        sent.set()
        working.join()
        traced.join()
    """
    assert run_code(code) == ["continued", "interrupted"]


@pytest.mark.parametrize(
    "module",
    ["records.dispatcher", "monitor.instructions.name_instructions"],
    ids=["compile", "call"],
)
def test_import_on_first_use_is_not_interrupted(module):
    code = f"""
        import torch

        class Sending(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "magpy_like.{module}":
                    send(threading.get_ident())

        sys.meta_path.insert(0, Sending())
        try:
            magpy.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        except Sent:
            print("interrupted", "magpy_like.{module}" in sys.modules)
    """
    assert run_code(code) == ["interrupted", "True"]
