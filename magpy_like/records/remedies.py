"""What would remove a split, by the reason for it. Data: patterns are tried in this order."""

from __future__ import annotations

import re

_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"which is disabled", "take magpy_like.disable off it, if it may be part of a record"),
    (
        r"calls ([\w.<>]+), (native code without an annotation|whose \w+ is native code)",
        r"if it only computes from its arguments, say so: magpy_like.annotate({0}, "
        r"pure_closure=True)",
    ),
    (r"branches on a tensor's value", "choose with torch.where instead of if or while"),
    (r"size that depends on a tensor's data", "keep the size: torch.where instead of a mask"),
    (
        r"tensor's value|tensor as text|a tensor as (a key|an index)",
        "keep it a tensor, or read it after the compiled function has returned",
    ),
    (r"a random number steers|draws a random", "draw it outside, and hand it in as an argument"),
    (
        r"talks to the world|reads the clock|waits|synchronises|measures memory",
        "move it out of the compiled function, or to its beginning or end",
    ),
    (r"generator from before|half-way through", "use up the generator before, or use a list"),
    (r"imports .* for the first time", "import it when the module is loaded"),
    (r"asynchronous|awaits", "compile the functions that it calls instead"),
    (r"whose cache it has made", "make the cached function outside"),
    (r"shares a tensor's memory with NumPy", "compute with torch, or before and after"),
    (r"a list whose length varies", "pass it on as a tensor, or keep its length"),
    (r"of unknown origin|out(side)? (of|the monitor's) sight", "make it in Python code"),
)


def remedy(reason: str) -> str:
    """How the program could be changed so that it does not split for this reason, or ``""``."""
    for pattern, text in _REMEDIES:
        found = re.search(pattern, reason)
        if found is not None:
            return text.format(*found.groups())
    return ""
