"""Fast paths that recordings try: speculation on values, and branches merged into operators."""

from __future__ import annotations

from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import BranchRefused, SpeculationRefused


class FastPaths:
    """The fast paths of one dispatcher, and those that a run has disproved."""

    def __init__(self) -> None:
        self.speculates = True
        """Whether recordings speculate on tensors' values that decide control flow."""
        self.merges_branches = True
        """Whether branches on tensors become operators."""
        self.disproved: list[str] = []
        """The reasons why fast paths were disproved; later recordings skip them."""

    def skip(self, obstacle: SpeculationRefused | BranchRefused) -> None:
        """Skip the fast path that kept a program from being recorded."""
        self.disproved.append(str(obstacle))
        if is_instance(obstacle, BranchRefused):
            self.merges_branches = False
        else:
            self.speculates = False
