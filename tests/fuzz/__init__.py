"""Generated whole programs, compared with eager mode.

A program is a module's source text, drawn from tables of productions by a seeded generator. One
copy runs eagerly, one compiled; each of several calls is compared in everything that it does.

    python -m tests.fuzz --backend eager --seeds 0:1000 --jobs 4

- ``fragments``: the tree of a program's text, and its expansion from templates with typed slots
- ``prelude``: classes, functions and state at the head of every program
- ``expressions``, ``statements``, ``arguments``: the tables of productions
- ``generation``: a program from a seed
- ``observations``: everything that one call does, and the comparison of two of them
- ``trials``: a program's calls in both modes, and the verdict
- ``shrinking``: a smaller program that fails in the same way
- ``worker``, ``sweep``, ``__main__``: many seeds in processes that may crash or hang
"""
