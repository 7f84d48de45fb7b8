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
    misses_before_report: int = 16
    """Misses of one compiled function without a hit after which it is reported."""
    misspeculation_limit: int = 8
    """Source positions of one program with misspeculated values; beyond, it speculates no more."""
    max_listed_items: int = 20
    """Items of one kind that the text of an explanation lists."""
    max_pairwise_distinct: int = 2
    """Changed objects of one type up to which a guard compares each with all others by identity;
    beyond, it counts distinct ids."""
    max_searched_sizes: int = 1 << 12
    """Number of values below the recorded one that are tried as lower bounds of a size."""
    max_guarded_array_bytes: int = 1 << 16
    """Bytes of the largest NumPy array whose contents a guard compares at every call."""
    max_tolist_numbers: int = 16
    """Elements of the largest tensor whose ``tolist`` results in lifted numbers."""
    max_nested_branches: int = 12
    """Depth of data-dependent branches inside branches that become operators."""
    max_branch_visits: int = 32
    """Number of times that isolated paths may reach one branch within one path of the program
    itself. Where the join point lies after a loop, as with ``continue`` in ``while``, both branches
    run through the rest of the loop, and each iteration doubles the visits."""
    min_loop_iterations: int = 8
    """Trip count from which a loop becomes an operator although the count is constant."""
    min_loop_operators: int = 4000
    """Operators in all iterations from which a loop with a constant trip count becomes an operator.
    *Measured* with the written-out LSTM on one core: unrolled, a call takes 0.65 to 0.9 of the
    time, but 1,000 operators take 1.5 s to compile, and more operators take more than their share
    (21 s for 64 steps of 10 layers, 1 s as an operator)."""
    max_isolated_iterations: int = 7
    """Isolated iterations of a loop until its plan of carried values is complete."""
    max_while_loop_attempts: int = 2
    """Number of attempts to make an operator of a ``while`` loop in one frame."""
    max_carried_nesting: int = 8
    """Depth of containers whose elements differ between iterations of a loop."""


config = Config()
"""The limits in effect."""
