"""Clean-up passes: remove, fold, merge and simplify operators.

``noops``: operators that return an argument's value, chains of views
``dead_code``: dead code and common subexpression elimination
``constant_folding``, ``uniform_tensors``: constants, and tensors of one number
``pattern_rewrites``: the table of rewrite rules
``slice_sums``: sums of slices as slices of one sum
``boolean_shifts``: ``mask << 2`` on captured graphs
"""
