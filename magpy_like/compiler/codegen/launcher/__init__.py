"""The launcher: generated Python that allocates buffers and calls kernels and ATen.

``launcher``: prints and defines the function
"""
