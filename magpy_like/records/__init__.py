"""Records of compiled functions: lookup, dispatch, misses, and segments of programs that split.

- ``interface``: the dispatcher as the public functions see it; explanations and counters
- ``dispatcher_making``: a dispatcher with the native helper, while it is compiled, and without
- ``dispatcher``: one compiled function or continuation, and the decision how a call runs
- ``record_cache``: its records, and the search for one that matches
- ``record_index``: which of many records may match a call
- ``location_keys``: global names, attributes and elements by which they are told apart
- ``record_limits``: the number of records kept, and the misses before values are lifted
- ``monitored_call``: a call that misses, run under the monitor
- ``segments``: the monitored run cut into segments, each with a record
- ``program_continuations``: continuations of a program, and state that they share
- ``miss_analysis``: values that varied between calls are lifted
- ``fast_paths``: speculation and merged branches, until a run disproves them
- ``eager_switch``: when a function runs eagerly for good
- ``reports``: warnings of calls that are not faster
- ``reset_by_torch``: ``torch.compiler.reset``
- ``graph_backend``, ``backend_names``: compilation of operator graphs
- ``foreign_tracing``: others that trace or transform the program's operators
- ``profiled_calls``: regions of calls in a profile
- ``explain``: the report of one run
"""
