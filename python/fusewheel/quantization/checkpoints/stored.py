"""What all formats of quantised checkpoints share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

HALVES = (torch.float16, torch.bfloat16)


class CheckpointFormat(ABC):
    """How a quantised checkpoint stores the weight of a linear layer.

    Attributes:
        required: the names of its tensors, without the name of the layer. The last of them is in
            no layer that is not quantised.
        optional: names that may be missing.
    """

    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def of(cls, config: Any) -> CheckpointFormat:
        """The format that a `quantization_config` of transformers describes.

        Raises:
            ValueError: it is not supported.
        """

    @abstractmethod
    def check(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """Checks dtypes and shapes of the tensors of a layer; they may be on the device `meta`.

        Raises:
            ValueError: one is not as the format says, or not supported.
        """

    @abstractmethod
    def layer(
        self, tensors: Mapping[str, Tensor], rows: int, columns: int, bias: Tensor | None
    ) -> nn.Module:
        """The layer that multiplies by these numbers, without rounding them.

        Raises:
            ValueError: the tensors hold what the format does not allow.
        """

    @abstractmethod
    def tensors(self, layer: Any) -> dict[str, Tensor]:
        """The tensors of a layer that `layer` made; the inverse."""


class StoredLinear(nn.Module):
    """Holds the tensors of a layer of a checkpoint until all of them have been read.

    Args:
        linear: the layer that they stand for; only its sizes and its bias are taken.
        tensors: what the checkpoint has, by name; on the device `meta`.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(self.held(name), tensor)
        self.register_parameter("bias", linear.bias)

    @staticmethod
    def held(name: str) -> str:
        """The name of the buffer for a tensor; buffers cannot have dots in theirs."""
        return name.replace(".", "_")

    def stored(self) -> dict[str, Tensor]:
        """The tensors by their names in the checkpoint."""
        return {name: getattr(self, self.held(name)) for name in self.names}


def expect(
    name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]
) -> None:
    """Raises ValueError unless a tensor has one of the dtypes, and the shape."""
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"{name} must be {wanted} of shape {list(shape)}, got "
            f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
        )


def expect_finite(name: str, tensor: Tensor) -> None:
    """Raises ValueError if a tensor has NaN or infinity."""
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def nibbles(data: Tensor) -> Tensor:
    """The codes of bytes, `[..., n]` to `[..., 2 n]`, the low half of each byte first."""
    return torch.stack((data & 15, data >> 4), -1).flatten(-2)


def from_nibbles(codes: Tensor) -> Tensor:
    """The inverse of `nibbles`."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def bytes_of_words(words: Tensor) -> Tensor:
    """int32 `[a, b]` to its bytes `[a, b, 4]`, the lowest first."""
    return words.contiguous().view(torch.uint8).unflatten(1, (words.shape[1], 4))


def words_of_bytes(data: Tensor) -> Tensor:
    """The inverse of `bytes_of_words`."""
    return data.contiguous().view(torch.int32).squeeze(-1)


def as_half(scales: Tensor) -> Tensor:
    """float32 numbers that came from float16 or bfloat16, in this dtype again."""
    half = scales.half()
    return half if torch.equal(half.float(), scales) else scales.bfloat16()
