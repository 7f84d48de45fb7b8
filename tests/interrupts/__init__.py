"""Exceptions of signal handlers at every point of a call at which CPython may run a handler."""
