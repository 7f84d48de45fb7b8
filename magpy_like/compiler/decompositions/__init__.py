"""Decompositions: operators in terms of simpler ones, torch's and own (PyTorch 2, section 4.2).

An operator with a lowering is never decomposed by torch. A decomposition of the own table may
return ``NotImplemented``: then the operator stays as it is.

``decomposition_table``: the decomposition of each operator
``registration``: how a module enters its own decompositions; torch's by operator
``eager_layouts``: results in the memory layout of eager's kernels
``index_placement``: scatters, padding and pooling by indices
``losses``: losses that check classes and probabilities
``distances``: ``cdist`` and ``pdist``
``complex_parts``: complex numbers by real and imaginary part
``low_precision``: products that eager rounds to a low precision
``random_draws``: ``random_`` with bounds
"""
