"""Lifted values: numbers, sizes, flags and lists that vary between calls (MagPy, section 6.2).

Lifted numbers, in reading order:
``variation``: values that may differ at later calls
``dynamic_marks``: dimensions that the user marked as dynamic
``expressions``: expressions over entry values, draws and the operator graph
``lifted_numbers``: the lifted numbers of a run, composed of the following
``lifted_identities``: objects of lifted numbers
``external_numbers``: lifted numbers read from outside
``number_guards``: conditions on lifted numbers
``lower_bounds``: conditions that a lower bound decides
``speculated_values``: values known only when operators have run
``symbolic_numbers``: arithmetic on the symbolic twin
``number_arithmetic``: arithmetic recorded as expressions
``raising_arithmetic``: arithmetic that may raise
``number_folds``: functions of a container of numbers
``tensor_numbers``: elements and sizes of tensors
``lifted_number_rules``: instructions on lifted numbers
``varying_reads``: reads of external numbers that vary
``repeatable_calls``: pure native calls that the mock repeats
``lifted_text``, ``tensor_formatting``: text formatted from lifted numbers and from tensors
``tensors_as_numbers``: tensors as arguments where torch expects numbers

Sizes:
``symbolic_twin``: the run on symbolic sizes
``shape_environment``: the environment of its symbols
``symbolic_forms``: operators rewritten so that they do not specialize sizes

Flags and lists:
``lifted_flags``: bools that vary between calls
``varying_lists``: external lists whose contents vary
``graph_lists``: lists of the operator graph
``unbound_tensors``: tensors unbound into such lists
``loop_ranges``: the iterators of loops that may become operators
``loop_windows``: reads at a distance from a loop's index
"""
