"""Time limits of the steps of a file."""

import threading

import pytest

from paritybench_runner import supervisor
from paritybench_runner.supervisor import Limits, Supervisor
from paritybench_runner.worker import EAGER, Event


class Channel:
    """A pipe whose events arrive after a delay, on a clock that advances only while polling."""

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


def count_events(monkeypatch, *events):
    channel = Channel(*events)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: channel.now)
    watching = object.__new__(Supervisor)
    watching.limits, watching._stop = Limits(10.0, None), threading.Event()
    return len(list(watching._events(channel, None)))


EAGER_RUN = [(0, Event("begin")), (1, Event("done")), (0, Event("begin", 0, EAGER))]


@pytest.mark.parametrize("known", [False, True])
def test_time_limit_of_a_compiler_grows_with_eager_time(monkeypatch, known):
    done = [] if known else [(8, Event("done", 0, EAGER))]
    begin = (8 if known else 0, Event("begin", 0, "magpy"))
    in_time = (10 + 19 * 8, Event("done", 0, "magpy")), (0, Event("end"))
    assert count_events(monkeypatch, *EAGER_RUN, *done, begin, *in_time) > 5
    too_late = (10 + 21 * 8, Event("done", 0, "magpy")), (0, Event("end"))
    with pytest.raises(TimeoutError):
        count_events(monkeypatch, *EAGER_RUN, *done, begin, *too_late)


def test_eager_time_limit_is_the_option(monkeypatch):
    with pytest.raises(TimeoutError):
        count_events(monkeypatch, *EAGER_RUN, (11, Event("done", 0, EAGER)), (0, Event("end")))


def test_time_limit_of_an_import_ignores_earlier_steps(monkeypatch):
    with pytest.raises(TimeoutError):
        count_events(monkeypatch, (0, Event("begin")), (11, Event("done")), (0, Event("end")))
