"""Torch's process-wide state as capture and compiler share it."""
