"""Passes that keep attention and recurrent layers as library operators."""
