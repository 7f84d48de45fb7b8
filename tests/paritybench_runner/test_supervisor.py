"""How long a step of a file may take."""

import threading

import pytest

from paritybench_runner import supervisor
from paritybench_runner.supervisor import Limits, Supervisor
from paritybench_runner.worker import EAGER, Event


class Channel:
    """Gives events after so many seconds of a clock that runs only while somebody waits."""

    def __init__(self, *events):
        self.now = 0.0
        self.due, self.events = [], []
        for seconds, event in events:
            self.due.append(self.due[-1] + seconds if self.due else seconds)
            self.events.append(event)

    def poll(self, seconds):
        self.now = min(self.now + seconds, self.due[0])
        return self.now == self.due[0]

    def recv(self):
        self.due.pop(0)
        return self.events.pop(0)


def received(monkeypatch, *events):
    channel = Channel(*events)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: channel.now)
    watching = object.__new__(Supervisor)
    watching.limits, watching._stop = Limits(10.0, None), threading.Event()
    return len(list(watching._events(channel, None)))


EAGER_RUN = [(0, Event("begin")), (1, Event("done")), (0, Event("begin", 0, EAGER))]


@pytest.mark.parametrize("known", [False, True])
def test_a_compiler_may_take_longer_where_eager_mode_took_long(monkeypatch, known):
    done = [] if known else [(8, Event("done", 0, EAGER))]
    begin = (8 if known else 0, Event("begin", 0, "magpy"))
    in_time = (10 + 19 * 8, Event("done", 0, "magpy")), (0, Event("end"))
    assert received(monkeypatch, *EAGER_RUN, *done, begin, *in_time) > 5
    too_late = (10 + 21 * 8, Event("done", 0, "magpy")), (0, Event("end"))
    with pytest.raises(TimeoutError):
        received(monkeypatch, *EAGER_RUN, *done, begin, *too_late)


def test_eager_mode_has_the_limit_itself(monkeypatch):
    with pytest.raises(TimeoutError):
        received(monkeypatch, *EAGER_RUN, (11, Event("done", 0, EAGER)), (0, Event("end")))


def test_an_import_does_not_get_what_the_last_step_took(monkeypatch):
    with pytest.raises(TimeoutError):
        received(monkeypatch, (0, Event("begin")), (11, Event("done")), (0, Event("end")))
