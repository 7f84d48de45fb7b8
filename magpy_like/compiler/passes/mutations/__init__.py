"""Passes on captured graphs for mutations that functionalisation would get wrong.

``metadata_mutations``: in-place metadata mutations and ``out=`` arguments
``tensor_subscripts``: ``x[i]`` with a 0-d tensor; the schemas of captured calls
``overlapping_writes``: writes to views with overlapping elements
"""
