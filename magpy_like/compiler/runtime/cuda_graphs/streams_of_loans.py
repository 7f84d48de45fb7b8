"""Streams on which a program uses lent results, as it says by ``Tensor.record_stream``.

The work of such a stream may outlast the loan. The next replay on another stream waits for it.
"""

from __future__ import annotations

import torch

from magpy_like import native
from magpy_like.torch_patches import note_streams_of

_noted: dict[torch.cuda.Stream, set[int]] = {}
"""Stream -> addresses of the streams that have waited for it since it was noted."""


def watch() -> None:
    """Note streams from now on."""
    note_streams_of(native.is_lent, _note)


def _note(stream: torch.cuda.Stream) -> None:
    _noted[stream] = set()


def wait() -> None:
    """Make the current stream wait for the work so far of all noted streams."""
    if _noted:
        current = torch.cuda.current_stream()
        for stream, waited in tuple(_noted.items()):
            if current.cuda_stream not in waited:
                current.wait_stream(stream)
                waited.add(current.cuda_stream)
