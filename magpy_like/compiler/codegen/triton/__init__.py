"""The Triton printer: loop nests as Triton kernels."""
