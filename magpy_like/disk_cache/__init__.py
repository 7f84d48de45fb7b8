"""The disk cache of compiled code."""
