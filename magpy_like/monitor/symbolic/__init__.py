"""Lifted values: numbers, sizes, flags and lists that vary between calls (MagPy, section 6.2).

``variation``: values that may differ at later calls
``dynamic_marks``: dimensions that the user marked as dynamic
``expressions``: expressions over entry values, draws and the operator graph
``numbers/``: lifted numbers and the arithmetic on them
``varying_reads``: reads of external numbers that vary
``lifted_text``, ``tensor_formatting``: text formatted from lifted numbers and from tensors
``tensors_as_numbers``: tensors as arguments where torch expects numbers
``memory_layouts``: strides that follow from sizes, and strides that vary on their own
``symbolic_twin``: the run on symbolic sizes and strides
``shape_environment``: the environment of its symbols
``symbolic_forms``: operators rewritten so that they do not specialize sizes
``lifted_flags``: bools that vary between calls
``lists/``: lists whose length varies, and loops over them
"""
