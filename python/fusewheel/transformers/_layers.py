"""Which layers of a model compute what an operator computes. They are tried, not known by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel.ops.activation.gelu_mul import gelu_mul, gelu_mul_packed
from fusewheel.ops.activation.silu_mul import silu_mul, silu_mul_packed
from fusewheel.ops.choices import Cast
from fusewheel.ops.norm.rms_norm import rms_norm

Forward = Callable[..., Tensor]
CASTS: tuple[Cast, ...] = ("llama", "gemma", "torch")
# Of 16-bit results so many must be equal: sums in another order round a few of them otherwise.
EQUAL = 0.99

_casts: dict[type, Cast | None] = {}


def epsilon_of(module: nn.Module) -> float | None:
    """The number that an RMSNorm adds to the mean square; None if the module has none."""
    for name in ("variance_epsilon", "eps"):
        if isinstance(value := getattr(module, name, None), float):
            return value
    return None


def looks_like_rms_norm(module: nn.Module) -> bool:
    """Whether a module has what an RMSNorm has: one weight, of one dimension, and an epsilon."""
    tensors = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    return (
        type(module).__name__.endswith("RMSNorm")
        and tensors == ["weight"]
        and module.get_parameter("weight").dim() == 1
        and epsilon_of(module) is not None
    )


def cast_of(module: nn.Module) -> Cast | None:
    """Where the RMSNorm of a class rounds, as `fusewheel.rms_norm` says it.

    It is found by trying a copy in bfloat16, once for each class; None if it computes something
    else.
    """
    kind = type(module)
    if kind not in _casts:
        try:
            _casts[kind] = _tried(module)
        except Exception:
            # A class of anybody's may do anything. It is left alone.
            _casts[kind] = None
    return _casts[kind]


def _tried(module: nn.Module) -> Cast | None:
    generator = torch.Generator().manual_seed(0)
    size = module.get_parameter("weight").shape[0]
    probe = copy.deepcopy(module)
    vars(probe).pop("forward", None)  # somebody's replacement
    gain = 1 + 0.3 * torch.randn(size, generator=generator)
    eps = epsilon_of(module)
    found = None
    with torch.no_grad():
        for dtype, scale in ((torch.bfloat16, 1.0), (torch.float32, 1e-3)):
            probe.weight = nn.Parameter(gain.to(dtype))
            x = (torch.randn(64, size, generator=generator) * scale).to(dtype)
            wanted = probe(x)
            if found is None:
                results = {c: rms_norm(x, size, probe.weight, eps, cast=c) for c in CASTS}
                found = next((c for c in CASTS if _equal(results[c], wanted)), None)
                if found is None:
                    return None
            else:
                # So small that a wrong epsilon shows.
                torch.testing.assert_close(rms_norm(x, size, probe.weight, eps, cast=found), wanted)
    return found


def _equal(got: Tensor, wanted: Tensor) -> bool:
    same = got.dtype == wanted.dtype and got.shape == wanted.shape
    return same and bool((got == wanted).float().mean() >= EQUAL)


_ACTIVATIONS: dict[str, Forward] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu, tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
}
_GATED: dict[str, Forward] = {
    "silu": silu_mul,
    "gelu": gelu_mul,
    "gelu, tanh": lambda gate, up: gelu_mul(gate, up, "tanh"),
}
_PACKED: dict[str, Forward] = {
    "silu": silu_mul_packed,
    "gelu": gelu_mul_packed,
    "gelu, tanh": lambda both: gelu_mul_packed(both, "tanh"),
}


def gated_forward(module: nn.Module) -> tuple[str, Forward] | None:
    """What a gated block does, and a fused forward of it; None if it is no such block.

    The activation is tried on numbers, and the whole block on two tokens.
    """
    children = dict(module.named_children())
    act = children.get("act_fn") or children.get("activation_fn")
    if act is None or "down_proj" not in children:
        return None
    packed = "gate_up_proj" in children
    if not packed and not {"gate_proj", "up_proj"} <= set(children):
        return None
    name = _activation(act)
    if name is None:
        return None
    fused = (_PACKED if packed else _GATED)[name]
    forward = _packed_forward(fused) if packed else _forward(fused)
    first = children["gate_up_proj" if packed else "gate_proj"]
    return (name, forward) if _same(module, forward, first) else None


def _activation(act: nn.Module) -> str | None:
    x = torch.linspace(-6, 6, 97)
    try:
        wanted = act(x)
    except Exception:
        return None
    for name, function in _ACTIVATIONS.items():
        if torch.allclose(function(x), wanted, rtol=1e-5, atol=1e-6):
            return name
    return None


def _forward(fused: Forward) -> Forward:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(fused(self.gate_proj(x), self.up_proj(x)))
        return result

    return forward


def _packed_forward(fused: Forward) -> Forward:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        result: Tensor = self.down_proj(fused(self.gate_up_proj(hidden_states)))
        return result

    return forward


def _same(module: nn.Module, forward: Forward, first: nn.Module) -> bool:
    """Whether a forward computes what a block computes, of two random tokens."""
    parameter = next(first.parameters(), None)
    size = getattr(first, "in_features", None)
    if parameter is None or size is None or parameter.is_meta:
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, size, generator=generator).to(parameter.device, parameter.dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            wanted, got = type(module).forward(module, x), forward(module, x)
    except Exception:
        return False
    bound = 0.02 if x.dtype.itemsize == 2 else 1e-4
    return bool((got - wanted).abs().max() <= bound * wanted.abs().max())
