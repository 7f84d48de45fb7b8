"""One native run of the program under the monitor, and its recording (MagPy, sections 3 and 5).

``run``: one run of a program, from entry to end.
``event_handlers``: the callbacks of the native monitor.
``split_handling``: splits of a run: the recording ends, or the program is cut into segments.
``context``: the parts of a run that rules for instructions and calls use.
``source_lines``: the program's present line, for the nodes of the operator graph.
``recording``: the facts of one run, composed of parts with one subject each.
``instructions``: a rule for each kind of instruction.
``calls``: Python calls, native calls and their results.
``objects``: reads, inspections and changes of Python objects.
``operator_graph``: the operator graph and the tensors on it.
``symbolic``: lifted values, expressions and the symbolic twin.
``torch_state``: modes, devices and the autograd graph.
``random_draws``: random numbers of Python and NumPy, which the mock draws again.
``replayed_effects``: effects beyond the RefGraph, which the mock reproduces.
``process_state``: state of the process and of torch that the program reads.
``region_entry``: entering the compiled region.
``entering_frames``: which frames are followed, and what a record relies on for their functions.
``instruction_events``: events of instructions, as the version of Python delivers them.
``call_operands``: the operands of calls on the stack.
``frame_observers``: trace and profile functions that the program sets.
``disabled_functions``: functions marked by ``magpy_like.disable``, where the program splits.
``program_arguments``: the compiled function's arguments, each read when first loaded.
``protocols``: interfaces of the packages that cut programs and merge branches.
``monitor_suspension``: suspending the monitor while native code runs Python code.
``isolation``: whether a part of the program runs without external effects.
``isolated_runs``: rules for such a part: a branch, a loop body, a checkpointed function.
``speculation``: speculating on tensors' values that decide control flow.
``restoration``: restoring the program's own tensors and numbers where a recording ends.
"""
