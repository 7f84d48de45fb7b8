"""C++ kernels for the CPU, vectorised by ``omp simd`` and parallel by OpenMP.

``cpp_printer``: entry point; chooses the printer of a kernel's loops
``cpp_expressions``: values, numbers and indices as C++ expressions
``cpp_kernel``: base class: buffers, loops, check flags
``cpp_pointwise``: loop nests without reductions
``cpp_scatter``: stores at computed indices
``cpp_row_gather``: gathers at the same positions in each row
``cpp_reduction``: base class of reductions: accumulators
``cpp_row_reduction``: reductions along rows of memory
``cpp_strips``: their strips of vector lanes
``cpp_row_pipeline``: the next row's extrema during this row's computation
``cpp_row_order``: the order in which a thread visits rows
``cpp_column_reduction``: reductions across rows of memory
``cpp_split_column_reduction``: the same with the rows shared among threads
``cpp_streaming``: streaming (non-temporal) stores
``cpp_prefetch``: software prefetch
``cpp_float16``: block conversion of float16
``cpp_special_functions``: ATen's special functions in a library of their own
``cpp_prelude.h``: types and functions that every kernel includes
"""
