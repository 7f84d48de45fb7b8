"""Loops as operators: ``for_loop``, ``for_loop`` with early exits, and ``while_loop``.

``loop_description``: plain data about a loop in the program
``loop_heads``: the decision at a loop's head
``for_head_bytecode``: heads of ``for`` loops in the bytecode
``counting_loops``: ``while`` loops that count
``generator_consumers``: native consumers of generators, replaced by polyfills
``for_loop``: the driver: attempts until the carried values are known
``loop_plan``: the carried values, as known so far
``loop_iteration``: one isolated iteration
``iteration_check``, ``iteration_values``: whether the next iteration records the same graph
``carried_containers``, ``carried_attributes``: carried values in containers and objects
``loop_tensor_writes``, ``row_writes``: tensors that iterations write into
``for_loop_node``: the operator
``loop_outputs``: its results in the program
``loop_exits``, ``exit_join_values``, ``for_loop_with_exits_node``: early exits of a loop
``while_loop``: loops on a tensor's value as ``while_loop``
"""
