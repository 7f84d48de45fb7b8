"""The disk cache of generated code.

``cache_entries``: entries on disk, their keys, checksums and locks
``cpp_compiler``: the C++ compiler, which fills it with shared objects, and loading these

The entries of graphs, and their keys, are in :mod:`magpy_like.compiler.runtime`.
"""
