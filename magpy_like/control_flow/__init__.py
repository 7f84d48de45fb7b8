"""Branches and loops on values as operators of the graph (MagPy, section 6.2)."""
