"""Triton kernels for CUDA GPUs. Block sizes follow from a model; no kernel is tuned by trial.

``triton_printer``: entry points: print, compile and load; changes to plans
``triton_kernel``: the code of one kernel: positions, phases, reductions
``triton_tiling``: blocks: axes, sizes, warps, split reductions
``triton_emitter``: values as Triton statements
``triton_expressions``: names, numbers, types and indices as Triton expressions
``triton_split_reduction``: rows shared by several programs
``triton_scans``: scans
``triton_prelude``: functions that kernels call
"""
