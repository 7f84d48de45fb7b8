"""Passes about memory layout and aliasing."""
