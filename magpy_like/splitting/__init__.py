"""Splits: the state of open frames, continuations, dynamic instructions (MagPy, section 5.3.1)."""
