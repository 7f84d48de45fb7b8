"""The parts that branches and loops share to become operators."""

from __future__ import annotations

from dataclasses import dataclass

from magpy_like.control_flow.paths.isolated_paths import IsolatedPaths
from magpy_like.control_flow.paths.operator_results import OperatorResults
from magpy_like.control_flow.paths.placeholder_tensors import PlaceholderTensors
from magpy_like.control_flow.paths.substitute_tensors import SubstituteTensors


@dataclass(frozen=True)
class OperatorTools:
    """The parts of one monitor run."""

    paths: IsolatedPaths
    placeholders: PlaceholderTensors
    results: OperatorResults
    substitutes: SubstituteTensors

    @classmethod
    def create(cls) -> OperatorTools:
        placeholders, substitutes = PlaceholderTensors(), SubstituteTensors()
        return cls(
            IsolatedPaths(placeholders), placeholders, OperatorResults(substitutes), substitutes
        )
