"""Private names of torch, each declared once under a public name.

A private name has a part that begins with one underscore (``torch._C._len_torch_dispatch_stack``,
``torch.utils._pytree``). Such names change between versions of torch without notice. The rest of
the package imports them from here, and a difference between versions is resolved here.

Tested are the versions of ``supported_torch``. Every name was seen on torch 2.13.0, the
version of the development environment; ``tests/test_torch_compat.py`` checks that each one exists
and that nothing outside this package reaches for a private name. A comment states where a name was
absent or behaved otherwise.

===========================  ======================================================================
Module                       Subject
===========================  ======================================================================
``operators``                operators and their overloads, schemas, dispatcher kernels
``dispatch``                 torch function and dispatch modes, default device, autocast, keys
``autograd``                 gradient mode, saved-tensor hooks, the running backward pass, versions
``functorch``                transforms (``vmap``, ``grad``) and levels of forward-mode AD
``checkpointing``            ``torch.utils.checkpoint`` without the frames in between
``tracing``                  fake tensors, symbolic expressions, contexts of tracing, graph modules
``pytree``                   nested containers as lists of leaves
``decompositions``           decompositions and the rules for dtypes and layouts behind them
``aot_autograd``             AOTAutograd, its descriptors of outputs
``dynamo``                   Dynamo's exceptions and registry of backends
``frame_evaluation``         Dynamo's stance, its marks on code objects, the backends it resets
``inductor_names``           Inductor's options and modes
``tensor_memory``            tensors over given memory, metadata checks in C++
``torchscript``              TorchScript functions, their types and schemas
``cuda``                     the current GPU and its stream, without a device guard
``float32_precision``        the precision of float32 products in torch's libraries
``profiler``                 whether a profiler is on, regions of a profile
``recognized_functions``     functions that the monitor recognizes when a program calls them
``operator_samples``         torch's own sample inputs of operators
===========================  ======================================================================

A module imports all its names. Those that cost import time (``aot_autograd``, ``dynamo``,
``operator_samples``, and ``symbolic_expressions``, which needs sympy) are imported where they are
needed; the others name parts of torch that ``import torch`` has loaded.

Private attributes of torch's instances cannot be declared as names. In use are: ``_schema``,
``_opname`` and ``_qualified_op_name`` of operators; ``_cdata``, ``_version``, ``_base`` and
``_is_view()`` of tensors and storages; ``_sequence_nr`` of autograd nodes; ``_tensors_no_vc_check``
and ``_materialize_non_diff_grads`` of an autograd context; ``_maybe_evaluate_static`` and
``_version_counter`` of a shape environment; ``_boxed_call`` and ``_lazy_backward_info`` of
functions that AOTAutograd returns.
"""
