"""Lists whose length varies between calls, and reads of them in loops.

``varying_lists``: external lists whose contents vary
``graph_lists``: lists of the operator graph
``unbound_tensors``: tensors unbound into such lists
``loop_ranges``: the iterators of loops that may become operators
``loop_windows``: reads at a distance from a loop's index
"""
