"""Verification of annotations: each claim is tested by running the operation on sample inputs.

The monitor trusts annotations: a wrong one results in wrong programs, silently. So each operation
runs on inputs that it accepts: twice on equal inputs with the process's state changed in between,
with other values for the parts that it claims not to read, and with its inputs compared afterwards.

- ``verification``: all operations of a table, each in a child process
- ``claim_checks``: one check for each kind of claim
- ``fact_checks``: the same for facts of operators
- ``output_relations``: checks of relations between inputs and outputs
- ``samples``: sample inputs of an operation
- ``value_variation``: other values for the parts that an operation does not read
- ``snapshot``: values as comparable data
"""

from magpy_like.annotation.verify.verification import Report, Result, verify

__all__ = ["Report", "Result", "verify"]
