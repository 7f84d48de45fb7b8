"""Memory layout and aliasing.

``channels_last``: channels-last images for large convolutions (section 4.4: layout)
``row_layout``: results that eager returns contiguous
``argument_forms``: in-place metadata mutations and ``out=`` arguments
``position_tensors``: ``x[i]`` with a 0-d tensor; the schemas of captured calls
``overlapping_writes``: writes to views with overlapping elements
"""
