"""Data-dependent branches and loops as operators of the graph (MagPy, section 6.2).

``branches``: the entry; branches on a tensor's value as ``cond``
``branch_outcomes``: differences between the branches at the join point, and ``cond``
``paths/``: isolated runs of a branch or an iteration, and their results in the program
``loops/``: ``for`` and ``while`` loops as ``for_loop`` and ``while_loop``
"""
