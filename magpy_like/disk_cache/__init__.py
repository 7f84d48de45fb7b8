"""The disk cache of generated code. ``docs/security.md`` states whom it trusts.

``cache_entries``: entries on disk, their keys and seals
``cache_location``: which folders are used, and what happens where one cannot be
``cache_folder``: the layout of a cache folder
``safe_folder``: folders that only this user can change, reached by descriptors
``signing_key``: signatures, for entries in folders that others can change
``claims``: what running processes hold: locks, and workspaces
``eviction``: the bound on the cache's size
``maintenance``: counting, verifying, pruning and clearing
``cpp_compiler``: the C++ compiler, which fills it with shared objects, and loading these
``process_runner``: runs of other programs, with time limits
``user_settings``: the variables of the environment

The entries of graphs, and their keys, are in :mod:`magpy_like.compiler.runtime`.
"""
