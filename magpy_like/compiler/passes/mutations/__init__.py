"""Passes for mutations: those that functionalisation would get wrong, and writes to inputs.

``metadata_mutations``: in-place metadata mutations and ``out=`` arguments
``tensor_subscripts``: ``x[i]`` with a 0-d tensor; the schemas of captured calls
``overlapping_writes``: writes to views with overlapping elements
``detached_writes``: writes that autograd does not record, such as ``x.detach().add_(1)``
``early_writes``: writes to inputs, of ATen graphs, right after the values written
"""
