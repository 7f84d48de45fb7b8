"""Passes for resized images, which follow eager's kernels."""
