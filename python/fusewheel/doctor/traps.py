"""The mistakes that operators make, by name, and what to write to mend them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Trap:
    """A kind of mistake.

    Attributes:
        name: of the mistake.
        remedy: what to write against it.
    """

    name: str
    remedy: str


NO_FAKE = Trap(
    "no fake kernel",
    "@torch.library.register_fake('ns::op') with a function that returns empty tensors of the "
    "right shape, dtype, strides and device.",
)
WRONG_FAKE = Trap(
    "the fake kernel lies",
    "Return from the fake exactly the shapes, dtypes and strides that the kernel returns.",
)
MISSING_GRADIENT = Trap(
    "gradient missing",
    "torch.library.register_autograd('ns::op', backward, setup_context=...), or a kernel on the "
    "Autograd key; return a gradient for every floating input.",
)
WRONG_GRADIENT = Trap(
    "gradient wrong",
    "Compare the backward formula with the derivative of the operator written in PyTorch's own.",
)
WRONG_SECOND = Trap(
    "second derivative wrong",
    "Compute backward with differentiable operators of the saved inputs, outside of no_grad and "
    "without .data or .detach(); or raise an error with once_differentiable.",
)
LOST_SECOND = Trap(
    "second derivative lost",
    "Read ctx.saved_tensors in backward as they are, without .detach(), .data or no_grad, and call "
    "there only operators that have a derivative; or mark backward with once_differentiable, so "
    "that a second derivative is an error instead of zero.",
)
SILENT_TANGENT = Trap(
    "forward-mode tangent lost",
    "Add a jvp to the autograd.Function, or run a composite of PyTorch's operators where an input "
    "is a dual tensor.",
)
NO_FUNC_RULE = Trap(
    "no rule for torch.func",
    "Write the autograd.Function with setup_context and generate_vmap_rule = True, or register a "
    "composite on the key FuncTorchDynamicLayerFrontMode.",
)
NO_VMAP_RULE = Trap(
    "no batching rule",
    "torch.library.register_vmap('ns::op', ...), or register a composite on the key "
    "FuncTorchDynamicLayerFrontMode.",
)
WRONG_TRANSFORM = Trap(
    "torch.func gives another result",
    "Compare the rule with a loop over the batch, or with the derivative it stands for.",
)
VERSION = Trap(
    "version counter not bumped",
    "Call torch.autograd.graph.increment_version on what is written, in a kernel on "
    "ADInplaceOrView that redispatches, or write it with PyTorch's in-place operators.",
)
UNDECLARED_WRITE = Trap(
    "writes an input undeclared",
    "Declare it in the schema, Tensor(a!) x, or mutates_args={'x'}; or write to a clone.",
)
UNDECLARED_ALIAS = Trap(
    "output aliases an input undeclared",
    "Return a clone, or declare the alias in the schema: Tensor(a) x -> Tensor(a).",
)
STRIDES = Trap(
    "strides ignored",
    "Read through the strides, call contiguous() on the input first, or refuse other layouts.",
)
DETERMINISM = Trap(
    "not deterministic",
    "Reduce in a fixed order; if random numbers are meant, tag the operator "
    "nondeterministic_seeded and draw them from torch's generator.",
)
THREADS = Trap(
    "not thread-safe",
    "Keep scratch memory and state local to the call, or guard it with a lock.",
)
GRAPH_BREAK = Trap(
    "graph break",
    "Make it an operator of the dispatcher (torch.library.custom_op or TORCH_LIBRARY) with a fake.",
)
OPAQUE_FUNCTION = Trap(
    "autograd.Function around an opaque kernel",
    "Make the kernel an operator of the dispatcher with a fake and call that, or register its "
    "backward with torch.library.register_autograd.",
)
NOT_FUNCTIONAL = Trap(
    "no functionalisation",
    "Register a composite on the key FuncTorchDynamicLayerFrontMode, or a kernel on Functionalize, "
    "that computes what is written and copies it there with x.copy_(...).",
)
BAKED = Trap(
    "tracing bakes it in as a constant",
    "Make it an operator of the dispatcher: a tracer sees nothing of what Python or a foreign "
    "library computes from the data of a tensor.",
)
PYTHON_OP = Trap(
    "a Python call in the TorchScript graph",
    "Make it an operator of the dispatcher: a graph that calls Python cannot be saved.",
)
NOT_SCRIPTABLE = Trap(
    "cannot be scripted",
    "Make it an operator of the dispatcher, or write its Python front in what TorchScript knows.",
)
DOUBLE = Trap(
    "registered twice",
    "Register one kernel for each key; load the library once, under one name.",
)
NO_KERNEL = Trap(
    "missing backend",
    "Register a kernel for that device, or one on CompositeExplicitAutograd for every device.",
)
TRUNCATED = Trap(
    "float argument truncated",
    "Take the argument as a double in the kernel, or declare it int in the schema.",
)
RECOMPILES = Trap(
    "recompiles for every size",
    "Do not branch on sizes in the fake, nor turn them into Python numbers.",
)
AUTOCAST = Trap(
    "no autocast rule",
    "torch.library.register_autocast('ns::op', device, dtype), or accept a mixture of dtypes.",
)
COMPILED_VALUES = Trap(
    "compiled, it gives another result",
    "Look for state that the kernel keeps between calls, and for a fake or alias that lies.",
)
CONTEXT_STATE = Trap(
    "saved past autograd",
    "Save tensors with ctx.save_for_backward, not as attributes: hooks, checkpointing and the "
    "check of versions see nothing else.",
)
CHECKPOINT = Trap(
    "another result when recomputed",
    "Let the result depend on nothing but the arguments.",
)
LOST_WRITE = Trap(
    "a checkpoint that saves it loses what it writes",
    "Return what is written, Tensor(a!) x -> Tensor(a!): a checkpoint then sees that it changed; "
    "or raise an error in such a checkpoint.",
)
UNDEFINED = Trap(
    "backward fails without every gradient",
    "Where set_materialize_grads(False) is used, take None for the gradient of an unused output.",
)
CRASH = Trap("the process dies", "Check sizes, pointers and dtypes before the kernel reads memory.")
HANG = Trap("it hangs", "Look for locks held across calls, and threads that a fork has lost.")
ERROR = Trap("raises an error", "See the error.")
EMPTY = Trap("wrong result for an empty tensor", "Return early where there are no elements.")
FORK = Trap("fails in a forked process", "Keep no threads, handles or locks from before the fork.")
SPAWN = Trap(
    "fails in a spawned process",
    "Register the operator when its package is imported, not by code that only the first process "
    "runs.",
)
NO_SHARDING = Trap(
    "no sharding rule",
    "@torch.distributed.tensor.experimental.register_sharding(torch.ops.ns.op.default) with a "
    "function that lists which tensors may be cut along which dimension, and where the results "
    "are then; for each operator that the backward pass calls too.",
)
SHARDING = Trap("fails on distributed tensors", "See the error.")
WRONG_SHARDING = Trap(
    "another result from several processes",
    "Compare the sharding rule with the operator: a sum over what is cut is Partial, not Shard, "
    "and what every piece needs whole is Replicate.",
)
FULLY_SHARDED = Trap(
    "wrong under fully_shard",
    "Keep nothing from one call to the next that was made of a parameter, nor its address: "
    "fully_shard frees its memory and fills it again, without a new version.",
)
FLOPS = Trap("flop counting fails", "torch.utils.flop_counter.register_flop_formula(op)(formula).")
PROFILER = Trap("nameless in a trace", "Call it through the dispatcher, which records its name.")
OPCHECK = Trap("opcheck fails", "See the error, and torch.library.opcheck's documentation.")
SUBCLASS = Trap(
    "fails on tensor subclasses",
    "Call it through the dispatcher, and read no data pointer before the backend's kernel.",
)
MODE = Trap("unseen by modes", "Call it through the dispatcher.")
PICKLE = Trap(
    "graphs with it cannot be copied",
    "torch.fx writes a call as Python code, torch.ops.ns.op.default(...): call it by no keyword of "
    "Python, and let it keep nothing from one call to the next.",
)
EXPORT = Trap("cannot be exported", "See the error: a fake is missing or guards on sizes.")
CPP = Trap(
    "does not run in C++",
    "Register the schema and the kernels in C++, with TORCH_LIBRARY or STABLE_TORCH_LIBRARY, in a "
    "library that is linked against no Python, and load it with torch.ops.load_library.",
)
GRAPHED = Trap(
    "cannot be captured by a CUDA graph",
    "Launch on the current stream, allocate by torch's allocator, and synchronise with nothing.",
)
HUGE = Trap("wrong beyond 2^31 elements", "Count elements and offsets in int64_t.")
INFERENCE = Trap("fails without autograd", "Do not rely on gradients being recorded.")

_MESSAGES = (
    (r"no fake impl|does not support running with fake tensors|UnsupportedOperator", NO_FAKE),
    (r"Cannot access data pointer of Tensor \(e\.g\. FakeTensor|not allocated yet", NO_FAKE),
    (r"with arguments from the 'Meta' backend", NO_FAKE),
    (r"Batching rule not implemented|does not have vmap support", NO_VMAP_RULE),
    (r"must override the setup_context staticmethod", NO_FUNC_RULE),
    (r"forward AD.*does not support|not implement.*forward mode|jvp", SILENT_TANGENT),
    (r"does not have an autograd kernel|does not require grad", MISSING_GRADIENT),
    (r"whose output has alias annotations", NOT_FUNCTIONAL),
    (r"Could not run .* with arguments from the '\w+' backend", NO_KERNEL),
    (r"does not have a sharding strategy", NO_SHARDING),
    (r"Could not export Python function call|PythonOp", PYTHON_OP),
)


def diagnosed(error: BaseException, otherwise: Trap) -> Trap:
    """The trap that the text of an error points to."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__
    if cause is not None:
        text += f"\n{type(cause).__name__}: {cause}"
    for pattern, trap in _MESSAGES:
        if re.search(pattern, text, re.DOTALL):
            return trap
    return otherwise
