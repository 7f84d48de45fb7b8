"""Passes that remove, fold and simplify operators."""
