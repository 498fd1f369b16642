"""Fused layers for `use_kernels=True` of transformers, by the package kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fusewheel.ops.activation.gelu import gelu
from fusewheel.ops.norm.rms_norm import rms_norm
from fusewheel.ops.rotary.rope import rope
from fusewheel.transformers._layers import cast_of, epsilon_of

DEVICES = ("cpu", "cuda")


class FusedRMSNorm(nn.Module):
    """The forward of the layers that transformers calls "RMSNorm"."""

    # With a compiler, the backend finds more than this.
    can_torch_compile = False
    has_backward = True

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The layer's own formula: where it rounds is found by trying its class."""
        layer: Any = self
        cast = cast_of(self) or "llama"
        eps = epsilon_of(self)
        return rms_norm(hidden_states, layer.weight.shape, layer.weight, eps, cast=cast)


class FusedRotary(nn.Module):
    """The function that transformers calls "rotary_pos_emb"."""

    can_torch_compile = False
    has_backward = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated."""
        if unsqueeze_dim == 1:
            return rope(q, k, cos, sin)
        q, k = rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)


class FusedGELU(nn.Module):
    """The forward of the layers that transformers calls "GeLU"."""

    can_torch_compile = False
    has_backward = True

    def forward(self, input: Tensor) -> Tensor:
        """The exact function, as PyTorch's default."""
        return gelu(input)


class FusedGELUTanh(nn.Module):
    """The forward of "GeluTanh", "NewGELU" and "FastGELU": one formula, spelt in three ways."""

    can_torch_compile = False
    has_backward = True

    def forward(self, input: Tensor) -> Tensor:
        """The approximation with the hyperbolic tangent."""
        return gelu(input, "tanh")


class _Layer:
    """An entry of the mapping: it gives a class, from here and not from a hub."""

    def __init__(self, layer: type[nn.Module]) -> None:
        self._layer = layer

    def load(self) -> type[nn.Module]:
        return self._layer

    def __str__(self) -> str:
        return f"fusewheel's {self._layer.__name__}"


LAYERS = {
    "RMSNorm": _Layer(FusedRMSNorm),
    "rotary_pos_emb": _Layer(FusedRotary),
    "GeLU": _Layer(FusedGELU),
    **dict.fromkeys(("GeluTanh", "NewGELU", "FastGELU"), _Layer(FusedGELUTanh)),
}


def register_kernels() -> None:
    """Maps layers of the package kernels to fused operators: "RMSNorm", "rotary_pos_emb", "GeLU",
    "GeluTanh", "NewGELU" and "FastGELU".

    Then `kernels.kernelize(model, mode=..., device="cpu")` uses them. More calls do no harm.

    Raises:
        ImportError: the package kernels is not installed.
    """
    try:
        from kernels import register_kernel_mapping
    except ImportError as error:
        raise ImportError(
            "fusewheel.transformers.register_kernels needs the package kernels, version 0.17 or "
            f"newer: pip install kernels ({error})"
        ) from error
    mapping: Any = {name: dict.fromkeys(DEVICES, layer) for name, layer in LAYERS.items()}
    register_kernel_mapping(mapping)
