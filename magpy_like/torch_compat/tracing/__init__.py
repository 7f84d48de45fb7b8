"""Private names of torch for tracing without data.

- ``fake_tensors``: tensors without data, and the modes that trace with them
- ``symbolic_expressions``: torch's sympy functions, value ranges, printers
- ``symbolic_tracing``: symbolic tracing by ``torch.fx``
- ``tracing_context``: the context of tracing, sources of symbolic sizes
- ``graph_sources``: the sources of generated graph modules
- ``unobserved_modules``: modules and graph modules that no global hook of the program sees
"""
