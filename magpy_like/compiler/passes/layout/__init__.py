"""Memory layout and aliasing.

``channels_last``: channels-last images for large convolutions (section 4.4: layout)
``contiguous_results``: results that eager returns contiguous
``metadata_mutations``: in-place metadata mutations and ``out=`` arguments
``tensor_indices``: ``x[i]`` with a 0-d tensor; the schemas of captured calls
``overlapping_writes``: writes to views with overlapping elements
"""
