"""Chrome traces of calls: which regions they have, and how these are nested."""

import json
import tempfile
from collections import Counter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


class Trace:
    """The events of a call in the trace that ``torch.profiler`` exports."""

    def __init__(self, profiler):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        found = [e for e in events if e.get("ph") == "X" and e.get("cat") in SHOWN]
        self.events = sorted(found, key=lambda e: (e["ts"], -e["dur"]))

    @property
    def names(self):
        """The names of the events, in the order in which they begin."""
        return [event["name"] for event in self.events]

    def starting(self, prefix):
        """The names of the events that start with a prefix."""
        return [name for name in self.names if name.startswith(prefix)]

    def labels(self):
        """How often each region of ``record_function`` occurs, without those of torch's tracing."""
        names = (e["name"] for e in self.events if e["cat"] == "user_annotation")
        return Counter(name for name in names if "compile_id" not in name)

    def inside(self, outer):
        """The names of the events inside the only event of this name."""
        (region,) = (event for event in self.events if event["name"] == outer)
        begin, end = region["ts"], region["ts"] + region["dur"]
        return [
            event["name"]
            for event in self.events
            if event is not region
            and event["tid"] == region["tid"]
            and begin <= event["ts"]
            and event["ts"] + event["dur"] <= end
        ]

    def kernels(self):
        """The names of the compiled kernels."""
        return self.starting("magpy_")


SHOWN = ("cpu_op", "user_annotation")


def profiled(call, **settings):
    """The result of a call, and its trace."""
    with profile(activities=[ProfilerActivity.CPU], **settings) as profiler:
        result = call()
    return result, Trace(profiler)
