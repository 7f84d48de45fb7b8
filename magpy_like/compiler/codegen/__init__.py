"""Code generation: kernels in C++ and Triton, and the launcher that calls them (PyTorch 2,
sections 4.5 to 4.7).

``common``: the plan of a kernel and the walk over its values, for both printers
``cpp``: kernels for the CPU
``triton``: kernels for CUDA GPUs
``capture_obstacles``: facts that decide whether a CUDA graph is captured
``launcher_pieces``: its source in pieces, where a CUDA graph cannot hold all of it
``profiled_source``: its source with regions for a profiler
``launcher``: the Python function that allocates buffers and calls kernels
"""
