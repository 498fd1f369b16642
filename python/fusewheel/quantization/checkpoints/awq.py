"""Checkpoints of AWQ.

Source: Lin et al., "AWQ" (2023); the tensors are those of AutoAWQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel.quantization.checkpoints.stored import (
    HALVES,
    CheckpointFormat,
    as_half,
    bytes_of_words,
    expect,
    expect_finite,
    from_nibbles,
    nibbles,
    words_of_bytes,
)
from fusewheel.quantization.formats import Int4Weight, packed, unpack_int4
from fusewheel.quantization.modules import LinearInt4

# Where in a word the code of each of 8 neighbouring out features is.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Awq(CheckpointFormat):
    """`w = scale * (code - zero)`, with 4 bits, in the version "gemm".

    | tensor | dtype, shape |
    |---|---|
    | `qweight` | int32 `[K, N / 8]`; of 8 neighbouring out features, the lowest bits have numbers 0, 2, 4, 6, 1, 3, 5, 7 |
    | `qzeros` | int32 `[K / group_size, N / 8]`, likewise |
    | `scales` | float16 or bfloat16 `[K / group_size, N]` |

    Attributes:
        group_size: in features of a group; -1 means all.
    """  # noqa: E501

    required = ("qzeros", "scales", "qweight")

    group_size: int = -1

    @classmethod
    def of(cls, config: Any) -> Awq:
        """See `CheckpointFormat`."""
        version = getattr(config.format, "value", config.format)
        if version != "gemm" or config.bits != 4 or not config.zero_point:
            raise ValueError(
                "only AWQ in version 'gemm' with 4 bits and zero points is supported, got version "
                f"{version!r}, {config.bits} bits, zero_point={config.zero_point}"
            )
        return cls(config.group_size)

    def check(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """See `CheckpointFormat`."""
        group = self._group(columns)
        if columns % group or not self._block(group):
            raise ValueError(
                f"group_size must be a multiple of 32 that divides {columns} in features, got "
                f"{group}"
            )
        groups = columns // group
        expect("qweight", tensors["qweight"], (torch.int32,), (columns, rows // 8))
        expect("scales", tensors["scales"], HALVES, (groups, rows))
        expect("qzeros", tensors["qzeros"], (torch.int32,), (groups, rows // 8))

    def layer(
        self, tensors: Mapping[str, Tensor], rows: int, columns: int, bias: Tensor | None
    ) -> nn.Module:
        """See `CheckpointFormat`."""
        expect_finite("scales", tensors["scales"])
        group = self._group(columns)
        block = self._block(group)
        scales = tensors["scales"].float()
        zeros = -scales * _unpack(tensors["qzeros"])
        scales, zeros = (t.T.repeat_interleave(group // block, 1) for t in (scales, zeros))
        codes = packed(_unpack(tensors["qweight"]).T)
        weight = Int4Weight(codes, scales.contiguous(), zeros.contiguous(), block)
        return LinearInt4.from_weight(weight, bias)

    def tensors(self, layer: Any) -> dict[str, Tensor]:
        """See `CheckpointFormat`."""
        step = self._group(layer.in_features) // layer.group_size
        scales = layer.scales[:, ::step].T.contiguous()
        # Exact, because zeros are scales times whole numbers.
        zeros = (-layer.zeros[:, ::step].T / scales).nan_to_num(8, 8, 8)
        return {
            "qweight": _pack(unpack_int4(layer.qweight).T),
            "qzeros": _pack(zeros.round().to(torch.uint8)),
            "scales": as_half(scales),
        }

    def _group(self, columns: int) -> int:
        return columns if self.group_size < 1 else self.group_size

    @staticmethod
    def _block(group: int) -> int:
        """The largest of our group sizes that divides a group; 0 if there is none."""
        return next((block for block in (128, 64, 32) if group % block == 0), 0)


def _unpack(words: Tensor) -> Tensor:
    """int32 `[a, N / 8]` to codes `[a, N]`, uint8."""
    places = torch.tensor(_PLACES, device=words.device)
    return nibbles(bytes_of_words(words))[..., places].flatten(1)


def _pack(codes: Tensor) -> Tensor:
    """The inverse of `_unpack`."""
    places = torch.tensor(_PLACES, device=codes.device).argsort()
    return words_of_bytes(from_nibbles(codes.unflatten(1, (-1, 8))[..., places]))
