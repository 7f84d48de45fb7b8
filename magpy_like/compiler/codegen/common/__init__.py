"""The target-independent part of code generation.

``kernel_plan``: a kernel's loops, phases and arguments; the base class of emitters
``recomputation``: values that a later phase computes again instead of keeping them
``interior_loops``: loop splitting at the bounds of masks, for interiors without masks
"""
