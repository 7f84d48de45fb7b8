"""Isolated runs of a branch or an iteration, and publication of an operator's results.

``captured_frames``: the state of the frame that is about to branch or loop
``isolated_paths``: isolated runs of one path on fake tensors
``path_ends``: the state in which a branch begins, and that in which a path ends
``placeholder_tensors``: fake tensors for any value that an iteration may receive
``value_comparison``: agreement of values between paths and iterations
``symbolic_sizes``: agreement of sizes that vary between calls
``frame_locations``: locations of an operator's results in the frame
``operator_results``: publication of results in the program's frame
``substitute_tensors``: tensors that the program holds in place of others, and their restoration
``body_nodes``: nodes of the graph that become an operator's body
``shared_parts``: the parts that branches and loops share
"""
