"""Printers: from scheduled loop nests to C++ and Triton, and the launcher that calls them."""
