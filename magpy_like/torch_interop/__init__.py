"""Torch's state, most of it process-wide, shared by the monitor and the compiler.

``autocast_cache``: casts that autocast keeps
``current_gpu``: the GPU that ``cuda`` means without a number
``error_texts``: errors of torch's tracing in plain words
``onednn``: whether the library is there and enabled
``own_fake_modes``: fake tensor modes that forget the program's tensors after own work
``random_states``: states of the default random generators
``saved_tensor_hooks``: hooks on tensors saved for the backward pass
``symbolic_floats``: agreement of symbolic floats with the steps of the program
``symbols``: shape environments and their symbols
``tracing_lock``: the lock that lets one thread trace at a time
``version_counters``: whether tensors share a version counter
"""
