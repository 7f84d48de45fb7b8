"""Limits and switches of capture, as documented fields of one object.

``from magpy_like.config import config``. A change takes effect on programs recorded after it. The
compiler's tuning constants are in the files that they tune.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Config:
    """Limits of capture. All are counts unless their description names a unit."""

    record_limit: int = 8
    """Records of one compiled function that may miss before it runs eagerly for good. A
    continuation may have as many for each of the modules that a loop's iterations call there.
    ``compile(options={"record_limit": …})`` overrides it."""
    generalise_after: int = 1
    """Records of one compiled function from which on a miss lifts the values that varied.
    ``compile(options={"generalise_after": …})`` overrides it."""
    split_limit: int = 3
    """Monitor runs that end in a split without a record before the function runs eagerly."""
    misspeculation_limit: int = 8
    """Source positions of one program with misspeculated values; beyond, it speculates no more."""
    max_listed_items: int = 20
    """Items of one kind that the text of an explanation lists."""
    max_pairwise_distinct: int = 2
    """Changed objects of one type up to which a guard compares each with all others by identity;
    beyond, it counts distinct ids."""
    max_searched_sizes: int = 1 << 12
    """Values below that of the recorded run which are tried for a lower bound of a size."""
    max_guarded_array_bytes: int = 1 << 16
    """Bytes of the largest NumPy array whose contents a guard compares at every call."""


config = Config()
"""The limits in effect."""
