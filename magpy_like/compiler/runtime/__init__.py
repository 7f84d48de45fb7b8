"""Run-time support of compiled graphs, and their caches on disk.

``compiled_graph_cache``: compiled graphs by ATen graph
``captured_graph_cache``: the compiled graph of a captured graph, without tracing it again
``cuda_graphs/``: kernels of a compiled graph, launched as one CUDA graph
``triton_launch``: compilation, loading and launch of Triton kernels
``native_launch``: launches of Triton kernels in C++
``profiled_launchers``: launchers that a profiler watches
``ptx_repair``: a workaround between Triton and the PTX assembler
``huge_pages``: reuse of freed memory, and huge pages for large tensors
``narrow_products``: CPU matrix products with one narrow side
"""
