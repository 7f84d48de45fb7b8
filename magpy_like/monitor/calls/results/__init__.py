"""Results of calls: those of native code, and those that the program's functions give to it.

- ``native_results``: the results of native calls
- ``unchanged_results``: results of Python functions that only the program receives
- ``callback_results``: results of Python functions that a native call reads, such as keys
- ``conversion_results``: native calls that return the result of a Python function
"""
