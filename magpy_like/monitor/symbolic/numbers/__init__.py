"""Lifted numbers: numbers that the mock recomputes at every call.

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
``pure_number_calls``: pure native calls that the mock repeats
``cached_look_ups``: calls of functions with a cache, which the guard repeats
"""
