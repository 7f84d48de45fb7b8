"""The test suite on several versions of Python and torch, each pair in a fresh environment.

``python -m tests.version_matrix --folder build/matrix`` runs all pairs and prints a Markdown table.
A pair whose result for this commit is in the folder is not run again. The interpreters are found on
``PATH``, as ``python3.12``.
"""
