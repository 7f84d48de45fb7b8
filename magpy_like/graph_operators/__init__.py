"""Operators of captured graphs that torch does not have, and the metadata of graph nodes.

``control_operators``: branches and loops, and Python values between them
``checkpoint_operator``: checkpointed functions as one node, or inlined
``checkpoint_batch_norm``: batch norm statistics that a checkpointed function updates again
``wrapped_functions``: functions that ``torch.fx`` cannot name, as targets of nodes
``custom_functions``: custom autograd functions that may have to run as they were recorded
``operator_registration``: registration of operators of the namespace ``torch.ops.magpy_like``
``node_metadata``: the declared keys of ``fx.Node.meta``
``node_origins``: what nodes of traced graphs know of the captured graph; regions of a profiler
``region_spans``: where these regions begin and end in a sequence of steps
``profiled_graphs``: these regions around the operators of a graph that runs one by one
"""
