"""Scheduling: fusion, execution order and memory of kernels (PyTorch 2, section 4.4).

``scheduler``: which loop nests become one kernel, and the order of kernels and ATen calls
``fusion``: legality of fusing two groups of loop nests, and their common loops
``topological_order``: the dependence order, maintained while items merge
``memory_planning``: allocation, reuse in place, and freeing of buffers
"""
