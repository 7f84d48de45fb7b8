"""The C++ helper. Wheels may carry it; else it is compiled on first use and kept in the disk cache.

``monitor.cpp``: the monitor as a module, with access to frames and objects; the subjects are in the
headers that follow.
``trace_hook.h``: what each event of the monitored thread leads to.
``monitor_type.h``, ``monitor_state.h``: ``Monitor``; the state of a run.
``monitored_call.h``: what is set in the process while a program runs under the monitor.
``call_as_caller.h``: a call whose callers are the program's.
``instruction_filter.h``: which instructions are reported.
``instruction_events.h``: which frames have events of instructions.
``isolated_runs.h``, ``traced_code.h``: code of the program that runs within the trace hook.
``monitor_interruptions.h``: exceptions from outside, in the program and in callbacks.
``garbage_collections.h``: garbage collections suspend the monitor.
``observing_metaclasses.h``: classes that would see what the monitor does.
``interpreter_frame.h``: the fields of the interpreter's frames, which differ between versions.
``frames.h``, ``instructions.h``: operands and locals of frames; decoded code.
``object_access.h``: classes and attributes, without code of the program.
``plain_values.h``: numbers and text.
``reference_replacement.h``: replaces references in tuples, generators and others.
``stack_depth.h``: the depth of the operand stack at an instruction.
``guards.cpp``: the checks of guards as a module; the subjects are in the headers that follow.
``tensor_metadata.h``, ``tensor_check.h``: metadata of tensors, its comparison, ``TensorCheck``.
``watched_objects.h``, ``watch.h``: fixed objects, their comparison, ``Watch``.
``torch_state.h``: torch's modes, ``StateCheck``.
``fetched_attributes.h``: attributes of variables that a guard has fetched.
``partial_call.h``: calls with known arguments, ``PartialCall``.
``shared_memory.h``: memory that tensors share.
``expected_objects.h``: objects that stand for values, and versions of dictionaries.
``inline_values.h``: values of attributes in the object itself.
``interrupts.cpp``, ``interrupts.h``: interruptions during own work wait for its end.
``raise_requests.h``: Python 3.11's request to raise a sent exception, which own work withholds.
``asynchronous.h``: recognises exceptions that another thread has sent.
``container_keys.cpp``: order and stored hashes of dictionaries and sets.
``operator_count.cpp``: the count of operators that torch dispatches.
``loans.cpp``: tensors over memory that a CUDA graph reuses, counted while somebody holds them.
``kernel_launch.cpp``: launches of compiled kernels on a GPU.
``tensor_objects.h``: the TensorImpl of a tensor object.
``helper_sources``: the C++ modules, their flags, and the identity of their binaries.
``helper_loading``: loading the binaries of a wheel or of the disk cache, or compiling them.
``helper_build``: compiling them in the background, with a line of progress.
``helper_status``: whether this process has the helper, and else the reason and the remedy.
``instance_checks``: an ``isinstance`` that runs no code of the program.

The helper's names are attributes of this package. The first use of one compiles the helper if it is
not loaded, and raises :class:`NativeHelperError` if that fails. ``helper_status.obstacle()`` asks
first, so that programs run uncompiled instead.
"""

from __future__ import annotations

from typing import Any

from magpy_like.native import helper_status

OWN_FOLDER = helper_status.OWN_FOLDER
"""The folder whose frames ``call_as_caller`` hides from the function that it calls."""


def __getattr__(name: str) -> Any:
    found = helper_status.require(name)
    globals()[name] = found  # the next use is a plain look-up
    return found
