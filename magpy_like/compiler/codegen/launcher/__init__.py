"""The launcher: generated Python that allocates buffers and calls kernels."""
