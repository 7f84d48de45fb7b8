"""Memory layout.

``channels_last``: channels-last images for large convolutions (section 4.4: layout)
``contiguous_results``: results that eager returns contiguous
``layouts_of_writes``: operators in place whose functional form has another layout
"""
