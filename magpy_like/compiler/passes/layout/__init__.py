"""Memory layout.

``channels_last``: channels-last images for large convolutions (section 4.4: layout)
``contiguous_results``: results that eager returns contiguous
"""
