"""Scheduling: fusion, order and memory of kernels (PyTorch 2, section 4.4)."""
