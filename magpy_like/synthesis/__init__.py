"""From a recording to a record: guard, mock and operator graph (MagPy, section 4).

- ``record``: a record, and its synthesis
- ``guard``: conditions under which the record serves a call
- ``mock``: the code that a matching call runs
- ``graph_compilation``: from the captured graph to a compiled one
- ``example_inputs``: inputs that the backend compiles the graph for
- ``shared_graphs``: equal graphs of one program, compiled once
- ``generated_source``: a Python function in the making
- ``number_source``: source text of expressions over lifted numbers
"""
