"""Signals and sent exceptions at every point of a call at which CPython may interrupt it."""
