"""Data-dependent branches and loops as operators of the graph (MagPy, section 6.2).

In reading order, branches first:

``branches``: the entry; branches on a tensor's value as ``cond``
``captured_frames``: the state of the frame that is about to branch or loop
``isolated_paths``: isolated runs of one path on fake tensors
``path_ends``: the state in which a branch begins, and that in which a path ends
``placeholder_tensors``: fake tensors for any value that an iteration may receive
``value_comparison``: agreement of values between paths and iterations
``symbolic_sizes``: agreement of sizes that vary between calls
``branch_outcomes``: differences at the join point, and ``cond``
``frame_locations``: locations of an operator's results in the frame
``operator_results``: publication of results in the program's frame
``substitute_tensors``: tensors that the program holds in place of others, and their restoration
``body_nodes``: nodes of the graph that become an operator's body
``operator_tools``: the parts that branches and loops share

Then loops:

``loop_description``: plain data about a loop in the program
``loop_heads``: the decision at a loop's head
``head_bytecode``: heads of ``for`` loops in the bytecode
``counting_loops``: ``while`` loops that count
``generator_consumers``: native consumers of generators, replaced by polyfills
``for_loop``: the driver: attempts until the carried values are known
``loop_plan``: the carried values, as known so far
``loop_iteration``: one isolated iteration
``iteration_check``, ``iteration_values``: whether the next iteration records the same graph
``carried_containers``, ``carried_attributes``: carried values in containers and objects
``loop_tensor_writes``, ``row_writes``: tensors that iterations write into
``for_loop_operator``: the operator
``loop_outputs``: its results in the program
``loop_exits``, ``exit_outputs``, ``exit_operator``: early exits of a loop
``while_loop``: loops on a tensor's value as ``while_loop``
"""
