"""Lifted values: numbers, sizes, flags and lists that vary between calls (MagPy, section 6.2)."""
