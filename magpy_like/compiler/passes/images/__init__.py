"""Resized images, pixel for pixel as eager's kernels compute them.

``image_resizing``: the passes, which replace calls in the captured graph
``interpolation``: linear and cubic modes, as weighted sums of neighbours
``nearest_pixels``: nearest modes, as copies of pixels
"""
