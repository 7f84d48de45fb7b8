"""Reasons for splits: the categories that users, logs and reports group splits by."""

from __future__ import annotations

import enum
from typing import NamedTuple


@enum.unique
class SplitReason(enum.Enum):
    """The reason why a program splits. One member covers all splits that one change removes.

    Attributes:
        title: a noun phrase for reports.
        remedy: the change to the program that removes such a split, or ``""`` if there is none.
            ``{subject}`` is replaced by the subject of the split (see ``SplitCause``).
    """

    title: str
    remedy: str

    def __init__(self, title: str, remedy: str = "") -> None:
        self.title, self.remedy = title, remedy

    # --- tensor values in Python -----------------------------------------------------------------

    DATA_DEPENDENT_BRANCH = (
        "data-dependent branch",
        "choose with torch.where instead of if or while",
    )
    TENSOR_VALUE_READ = (
        "tensor value read by Python",
        "keep it a tensor, or read it after the compiled function has returned",
    )
    DATA_DEPENDENT_SIZE = (
        "size that depends on a tensor's data",
        "keep the size: use torch.where instead of a mask",
    )
    VARYING_LIST = (
        "list of varying length passed to an operator",
        "pass a tensor instead, or keep the length of the list",
    )
    MISSPECULATION_NOT_UNDOABLE = ("effects that a misspeculation could not roll back",)

    # --- branches, loops and functions as operators ----------------------------------------------

    BRANCH_NOT_MERGEABLE = ("branch that no operator expresses",)
    LOOP_NOT_MERGEABLE = ("loop that no operator expresses",)
    ISOLATED_EFFECT = (
        "side effect in a branch, a loop body or a checkpointed function",
        "move the side effect out of it",
    )
    FUNCTION_OPERAND = (
        "function passed to an operator that is not a pure function of its arguments",
        "pass the values that the function uses as arguments",
    )
    EFFECT_IN_OPERATOR = (
        "side effect inside an operator written in Python",
        "move the side effect out of the operator",
    )
    CHECKPOINT = (
        "checkpointed function with more than tensor computations",
        "move everything but tensor computations out of the checkpointed function",
    )

    # --- native code -----------------------------------------------------------------------------

    UNANNOTATED_NATIVE_CALL = (
        "call of native code without an annotation",
        "if it only computes from its arguments, say so: "
        "magpy_like.annotate({subject}, pure_closure=True)",
    )
    UNANNOTATED_NATIVE_ATTRIBUTE = ("attribute computed or stored by native code",)
    DYNAMIC_OPERATION = (
        "operation that is annotated as dynamic",
        "move it out of the compiled function, or to its beginning or end",
    )
    NATIVE_CALLBACK = (
        "Python function called by native code",
        "call the function in a Python loop",
    )
    NATIVE_CONTEXT_MANAGER = (
        "native context manager",
        "enter it outside the compiled function",
    )
    HIDDEN_NATIVE_OPERATORS = (
        "native code that runs tensor operators itself",
        "call the operators in Python code",
    )
    TORCHSCRIPT = (
        "TorchScript code",
        "call the Python function or module from which it was made",
    )
    DISABLED_FUNCTION = (
        "call of a disabled function",
        "take magpy_like.disable off {subject}, or torch.compiler.disable, if a record may contain "
        "it",
    )
    GRAPH_BREAK = ("graph break that the program asks for", "remove the call of {subject}")
    TORCH_CONTROL = (
        "control of torch's own compiler",
        "call {subject} outside the compiled function",
    )

    # --- tensors ---------------------------------------------------------------------------------

    UNSUPPORTED_OPERAND = ("operand that an operator graph cannot hold",)
    TENSOR_INTERNALS = (
        "read or change of a tensor's storage or internal state",
        "move it out of the compiled function",
    )
    NESTED_TENSOR = (
        "nested tensor from outside",
        "pass padded tensors, or the parts, and make the nested tensor in the compiled function",
    )
    TENSOR_SUBCLASS = (
        "tensor subclass or mode with a __torch_function__",
        "pass plain tensors",
    )
    UNKNOWN_ORIGIN = (
        "object that was created out of the monitor's sight",
        "create it in Python code",
    )
    AUTOGRAD_GRAPH = (
        "read or change of the autograd graph",
        "run backward passes and change hooks outside the compiled function",
    )
    NUMPY_MEMORY = (
        "memory shared with NumPy or another library",
        "compute with torch, or convert before and after the compiled function",
    )
    NUMPY_ARRAY = (
        "NumPy array that a guard cannot check",
        "pass a tensor instead",
    )

    # --- random numbers --------------------------------------------------------------------------

    RANDOM_VALUE_DECIDES = (
        "random number in control flow or in Python",
        "draw it outside and pass it as an argument",
    )
    RANDOM_GENERATOR = (
        "change or creation of a random generator",
        "seed or create the generator outside the compiled function",
    )

    # --- Python objects --------------------------------------------------------------------------

    CUSTOM_CLASS_STATE = ("object whose state a mock cannot restore",)
    UNREACHABLE_VARIABLE = ("variable without an access path that a later call can follow",)
    UNGUARDABLE_KEY = (
        "key that a guard cannot compare",
        "use strings, numbers or tuples of them as keys",
    )
    OBJECT_IDENTITY = (
        "identity or memory address of an object",
        "compare or key objects by a value of their own, such as a name",
    )
    FINALIZER = (
        "object whose destruction the program observes",
        "keep the object alive until the compiled function has returned",
    )
    WEAK_REFERENCE = (
        "weak reference or weak proxy",
        "hold the object by an ordinary reference",
    )
    ITERATOR_STATE = (
        "external iterator or view",
        "create the iterator inside the compiled function",
    )
    GENERATOR_SUSPENDED = (
        "suspended generator",
        "exhaust the generator before, or use a list",
    )
    CLASS_CHANGE = (
        "creation or change of a class or module",
        "define classes outside the compiled function",
    )
    TENSOR_OPERATOR = (
        "operator that a class of tensors replaces",
        "leave torch's operators as they are, and call a function of your own instead",
    )
    CACHED_FUNCTION = (
        "cache of a cached function",
        "create and clear cached functions outside the compiled function",
    )
    EXCEPTION_STATE = ("exception, or state of one, that a mock cannot restore",)
    UNSUPPORTED_INSTRUCTION = ("instruction that no rule supports",)
    ASYNC = ("asynchronous code", "compile the functions that it calls instead")
    RUN_TIME_CODE = (
        "code created at run time",
        "define the function when its module is loaded",
    )
    FAILED_IMPORT = ("import that fails", "import it when the module is loaded")

    # --- outside world, process and interpreter --------------------------------------------------

    IO = (
        "input or output",
        "move it out of the compiled function, or to its beginning or end",
    )
    WARNING_OR_LOG = (
        "warning or log record that a mock cannot repeat",
        "warn or log with constants, or outside the compiled function",
    )
    BLOCKING_OR_CLOCK = (
        "wait, synchronisation or clock",
        "move it out of the compiled function, or to its beginning or end",
    )
    TRACE_FUNCTION = (
        "trace or profile function that the program sets",
        "set it outside of the compiled function",
    )
    OBSERVING_METACLASS = (
        "class whose metaclass sees each comparison, hash or attribute access",
        "define these methods in the class instead, or keep it out of the compiled function",
    )
    INTERPRETER_STATE = (
        "inspection of the interpreter: stack, scopes or memory",
        "move it out of the compiled function, or to its beginning or end",
    )
    MODE_CHANGE = (
        "change of process-wide state or of a torch mode",
        "change it outside the compiled function, or restore it before the function returns",
    )
    THREADS = (
        "state that other threads share or lack",
        "use it in one thread, outside the compiled function",
    )
    INTERRUPTED = ("interruption from outside, such as KeyboardInterrupt",)

    # --- magpy_like itself -----------------------------------------------------------------------

    NO_MONITOR = ("monitor that this process cannot use", "follow the advice of the reason")
    INTERNAL_ERROR = ("internal error of magpy_like", "please report it")


class SplitCause(NamedTuple):
    """The cause of one split, or of one branch or loop that did not become an operator.

    Attributes:
        reason: the category.
        detail: the specifics in English, with the program as the subject: ``calls f, ...``.
        subject: the name of the function, type or attribute that the cause is about, or ``""``.
    """

    reason: SplitReason
    detail: str
    subject: str = ""

    @property
    def remedy(self) -> str:
        """The change to the program that would remove the split, or ``""``."""
        return self.reason.remedy.format(subject=self.subject)

    def __str__(self) -> str:
        return self.detail
