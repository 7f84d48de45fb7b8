"""Runs of other programs: results, time limits, and the end of everything that was started."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from magpy_like.disk_cache import process_runner
from magpy_like.disk_cache.process_runner import TimedOut, run


def shell(text, **options):
    return run(["/bin/sh", "-c", text], **{"seconds": 30, **options})


def is_running(number):
    """True if a process is there and not just waiting to be collected."""
    try:
        with open(f"/proc/{number}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(number):
    deadline = time.monotonic() + 10
    while is_running(number) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(number)


def test_status_and_output_are_returned(tmp_path):
    done = shell("echo out; echo $WORD >&2; pwd; exit 3", folder=str(tmp_path),
                 environment={"WORD": "err"})  # fmt: skip
    assert (done.status, done.output, done.errors) == (3, f"out\n{tmp_path}\n", "err\n")


def test_output_that_is_not_text_is_read():
    assert shell(r"printf '\377x'").output == "\ufffdx"


def test_long_output_does_not_block():
    assert len(shell("head -c 3000000 /dev/zero >&2").errors) == process_runner._KEPT_OUTPUT


def test_program_has_no_input():
    assert shell("cat; echo end").output == "end\n"


def test_missing_program_is_an_error():
    with pytest.raises(FileNotFoundError):
        run(["/no/such/program"], seconds=5)


@pytest.mark.parametrize("has_pidfd", [True, False])
@pytest.mark.parametrize(
    "text",
    ["sleep 1000", "trap '' TERM INT; while :; do sleep 1000; done", "kill -STOP $$",
     "sleep 1000 & wait"],
    ids=["sleeps", "ignores signals", "stopped", "waits for a child"],
)  # fmt: skip
def test_hanging_program_is_stopped(tmp_path, monkeypatch, text, has_pidfd):
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda pid: (_ for _ in ()).throw(OSError()))
    begin = time.monotonic()
    with pytest.raises(TimedOut, match=r"/bin/sh -c .* did not end within 0.3 s"):
        shell(f"echo $$ > {tmp_path}/pid; {text}", seconds=0.3)
    assert time.monotonic() - begin < 10
    assert ends(int((tmp_path / "pid").read_text()))


def test_children_of_a_stopped_program_are_stopped(tmp_path):
    with pytest.raises(TimedOut):
        shell(f"sleep 1000 & echo $! > {tmp_path}/pid; wait", seconds=0.5)
    assert ends(int((tmp_path / "pid").read_text()))


def test_children_left_behind_neither_delay_nor_survive(tmp_path):
    begin = time.monotonic()
    done = shell(f"sleep 1000 & echo $! > {tmp_path}/pid; echo done")
    assert (done.status, done.output) == (0, "done\n")
    assert time.monotonic() - begin < 10
    assert ends(int((tmp_path / "pid").read_text()))


def test_interrupt_stops_the_program(tmp_path, outer_environment):
    program = (
        "import sys; from magpy_like.disk_cache.process_runner import run\n"
        "run(['/bin/sh', '-c', f'echo $$ > {sys.argv[1]}; exec sleep 1000'], seconds=60)"
    )
    target = tmp_path / "pid"
    command = [sys.executable, "-c", program, target]
    child = subprocess.Popen(command, env=outer_environment, stderr=subprocess.DEVNULL)
    while not (target.exists() and target.read_text()):
        assert child.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)  # until it waits
    child.send_signal(signal.SIGINT)
    assert child.wait(30) != 0
    assert ends(int(target.read_text()))


def test_ignored_child_signals_do_not_break_a_run():
    """With SIGCHLD ignored the kernel collects the status."""
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert shell("echo done").output == "done\n"
        with pytest.raises(TimedOut):
            shell("sleep 1000", seconds=0.2)
    finally:
        signal.signal(signal.SIGCHLD, old)


def test_no_limit_is_infinite():
    assert shell("sleep 0.1; echo done", seconds=float("inf")).output == "done\n"


def test_runs_in_threads_are_independent():
    results = {}

    def one(number):
        try:
            results[number] = shell(f"sleep {number}; echo {number}", seconds=1).output
        except TimedOut:
            results[number] = None

    threads = [threading.Thread(target=one, args=(number,)) for number in (0, 0.1, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: "0\n", 0.1: "0.1\n", 1000: None}
