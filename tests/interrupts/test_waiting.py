"""A signal ends the wait for a compiler of C++, and the compiler."""

import signal
import threading
import time
from pathlib import Path

import pytest

from magpy_like.disk_cache import claims, cpp_compiler
from magpy_like.disk_cache.cpp_compiler import CppSource, compile_cpp_many
from magpy_like.interruption import call_uninterrupted, process_runner


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """Installs a compiler that hangs; returns the file of its process numbers."""
    started = tmp_path / "started"
    compiler = tmp_path / "hanging-c++"
    compiler.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo 1; exit 0; fi\n'
        f"echo $$ >> {started}\nexec sleep 1000\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "cache"))
    return started


@pytest.fixture
def ring_when():
    """``ring_when(condition)``: sends SIGINT to this thread once the condition holds."""
    main, threads = threading.main_thread(), []

    def ring_when(condition):
        def wait():
            while not condition():
                time.sleep(0.01)
            signal.pthread_kill(main.ident, signal.SIGINT)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield ring_when
    for thread in threads:
        thread.join()


def _ends(pid):
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("count", [1, 2], ids=["one source", "several sources"])
def test_interrupt_ends_compilers_and_their_wait(hanging, ring_when, count):
    sources = [CppSource(f"int x{k};", f"x{k}") for k in range(count)]
    ring_when(lambda: hanging.exists() and len(hanging.read_text().split()) == count)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call_uninterrupted(compile_cpp_many, sources)
    assert time.monotonic() - begin < 30
    assert all(_ends(pid) for pid in hanging.read_text().split())
    assert not cpp_compiler._hanging  # an interrupted compiler is not taken for one that hangs


def test_interrupt_ends_the_wait_for_another_process_that_compiles(tmp_path, ring_when):
    path = tmp_path / "lock"
    with open(path, "w") as held, open(path) as wanted:
        assert claims.wait_for_lock(held.fileno(), 1)
        began = []

        def work():
            began.append(True)
            claims.wait_for_lock(wanted.fileno(), 60)

        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ring_when(lambda: began)
            call_uninterrupted(work)
        assert time.monotonic() - begin < 30


def test_handler_that_raises_nothing_does_not_end_the_wait():
    rings = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        command = ["/bin/sh", "-c", "sleep 0.4; echo done"]
        finished = call_uninterrupted(lambda: process_runner.run(command, seconds=30))
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert finished.output == "done\n"
    assert rings == [1]
