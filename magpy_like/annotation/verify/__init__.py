"""Verification of annotations: every claim that can be tried is tried on sample inputs.

An annotation is trusted by the monitor: one that is wrong makes a wrong program, silently. So the
claims are put to the test, by running each operation on inputs that it accepts: twice on equal
inputs in a process whose state was changed in between, with what the operation says it does not
read changed, and with a look at what it left its inputs in.
"""

from magpy_like.annotation.verify.verification import Report, Result, verify

__all__ = ["Report", "Result", "verify"]
