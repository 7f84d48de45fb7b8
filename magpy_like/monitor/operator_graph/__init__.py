"""The operator graph: a ``torch.fx`` graph of the tensor operators that ran (MagPy, section 4.3).

``graph_values``: the nodes of the program's tensors
``operator_graph``: operators as nodes
``operator_arguments``: the arguments of operators
``graph_nodes``: placeholders, constants and results
``graph_numbers``: numbers of the graph
``subgraphs``: branches, loops and their graphs
``profiler_labels``: regions of ``record_function`` in the program
``function_nodes``: functions as targets of nodes
``running_operator``: the operator that is running
``tensor_writes``: tensors that operators have written to
``tensor_sizes``: sizes that vary or depend on data
``constant_tensors``: tensors computed from constants alone
``data_dependent_errors``: operators that raise
"""
