"""CUDA graphs: the kernels of a compiled graph, launched as one.

``graph_policy``: facts of a compiled graph that decide if it may become a CUDA graph
``graphed_launcher``: the launcher of a compiled graph that is captured and replayed
``capture_site``: the calls of a launcher with equal sizes, and their findings
``captured_graph``: one CUDA graph: its inputs, its results, its replay
``staged_inputs``: inputs whose addresses change from call to call
``passed_results``: results that a replay hands out
``tensor_windows``: tensors over the memory of another one, made anew for each call
``streams_of_loans``: streams on which a program uses lent results
``held_graphs``: the bound on their memory
``capture_reports``: what ``explain`` says of a program's compiled graphs
``capture_pool``: memory, streams and locks of the graphs that run on one stream

A program must not notice. Three rules see to that:

- A replay reads the contents of the call's arguments. The memory of an argument is part of the CUDA
  graph if its address stays the same, which each call compares; else the argument is copied.
- A result belongs to the caller. Results in a CUDA graph's memory are copied to new memory, or lent
  (:class:`magpy_like.native.Lender`): then the graph is not replayed until the loan has ended.
- Whatever does not fit is launched kernel by kernel, as without CUDA graphs.
"""
