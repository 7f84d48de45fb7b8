"""State of torch: modes, devices, autograd nodes, tensor metadata.

``torch_modes``: gradient mode and autocast
``cached_casts``: casts of weights that autocast keeps
``default_device``: the default device
``autograd_nodes``: hooks and reads of the autograd graph
``tensor_attributes``: attributes of tensors
``tensor_metadata``: metadata that the guard checks on demand
``outdated_bases``: views whose data, or whose base's data, was replaced
``tensor_counters``: counters that a program keeps in tensors
"""
