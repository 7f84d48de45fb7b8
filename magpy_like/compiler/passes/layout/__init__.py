"""Memory layout.

``channels_last``: channels-last images for convolutions (section 4.4: layout)
``layout_costs``: the convolutions where they pay
``dimension_orders``: the order of a tensor's dimensions in memory
``contiguous_results``: results that eager returns contiguous
``layouts_of_writes``: operators in place whose functional form has another layout
"""
