"""Calls: Python functions are followed, native calls are recorded by annotation (Figure 12).

In reading order:

- ``call_dispatch``: dispatch of a call by the kind of its callee
- ``native_calls``: the beginning of a native call, and native calls that raise
- ``results``: the results of native calls, and of the Python functions that they call
- ``call_inputs``: the depth to which arguments are read, and lifted numbers in them
- ``argument_kinds``: kinds of arguments, found without running their methods
- ``read_calls``: calls whose result is an existing variable
- ``write_calls``: calls that store or delete one value
- ``special_calls``: the table of rules for native calls that need more than an annotation
- ``storage_calls``: the rules for calls that depend on where tensors lie in their storages
- ``lifted_calls``: the rules for calls with lifted numbers, flags or lists
- ``delegating_generators``: exceptions thrown into generators that wait in ``yield from``
- ``unreported_native_reads``: reads by native code that no instruction reports
- ``special_methods``: look-ups of special methods by native code
- ``python_operators``: operator instructions such as ``a + b``
- ``operator_body``: references of operators in Python code to other objects than their arguments
- ``backward_code``: dependences of a custom function's backward pass on other than its arguments
- ``operator_closures``: functions among the arguments of an operator
- ``warning_and_log_calls``: warnings and log records, which a mock repeats
- ``polyfills``: Python functions in place of native code that hides tensor operators
- ``element_consumers``: ``list``, ``tuple`` and ``sum`` of generator expressions
- ``torchscript``: translation of TorchScript functions to Python
- ``compiled_callees``: compiled functions and modules inside a compiled region
- ``checkpoints``: functions under ``torch.utils.checkpoint``
"""
