"""Calls: Python functions are followed, native ones are recorded by their annotation."""
