"""The disk cache of generated code.

``sealed_entries``: entries on disk, their keys, checksums and locks
``cpp_compiler``: the C++ compiler, which fills it with shared objects, and loading these
"""
