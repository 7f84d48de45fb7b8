"""Operators that captured graphs contain and torch does not have."""
