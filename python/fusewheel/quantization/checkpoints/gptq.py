"""Checkpoints of GPTQ.

Source: Frantar et al., "GPTQ" (2022); the tensors are those of AutoGPTQ and GPTQModel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel.quantization.checkpoints.layers import LinearInt8Zeros, Reordered
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
from fusewheel.quantization.formats import Int4Weight, Int8Weight, packed, unpack_int4
from fusewheel.quantization.modules import LinearInt4, LinearInt8


@dataclass(frozen=True)
class Gptq(CheckpointFormat):
    """`w = scale * (code - zero)`, with 4 or 8 bits.

    | tensor | dtype, shape |
    |---|---|
    | `qweight` | int32 `[K * bits / 32, N]`: codes of neighbouring in features, the lowest bits first |
    | `qzeros` | int32 `[groups, N * bits / 32]`: zeros, one less than they are in the first version |
    | `scales` | float16 or bfloat16 `[groups, N]` |
    | `g_idx` | int32 `[K]`: the group of each in feature; without it, neighbours form groups |

    Attributes:
        group_size: in features of a group; -1 means all.
        symmetric: whether all zeros are half of the range.
        less: what is missing at stored zeros: 1, or 0 in version 2.
    """  # noqa: E501

    required = ("qzeros", "scales", "qweight")
    optional = ("g_idx",)

    group_size: int = -1
    symmetric: bool = True
    less: int = 1

    @classmethod
    def of(cls, config: Any) -> Gptq:
        """See `CheckpointFormat`."""
        name = str(getattr(config, "format", "gptq")).lower()
        if name not in ("gptq", "gptq_v2"):
            raise ValueError(f"checkpoint_format must be 'gptq' or 'gptq_v2', got {name!r}")
        return cls(config.group_size, bool(config.sym), 1 if name == "gptq" else 0)

    def check(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """See `CheckpointFormat`."""
        words = tensors["qweight"].shape[0]
        bits = 32 * words // columns
        if bits not in (4, 8) or columns % 32:
            raise ValueError(
                f"qweight has {words} words for {columns} in features, expected one for each 8 (4 "
                "bits) or 4 (8 bits) of a multiple of 32 in features"
            )
        groups = tensors["scales"].shape[0]
        expect("qweight", tensors["qweight"], (torch.int32,), (columns * bits // 32, rows))
        expect("scales", tensors["scales"], HALVES, (groups, rows))
        expect("qzeros", tensors["qzeros"], (torch.int32,), (groups, rows * bits // 32))
        if "g_idx" in tensors:
            expect("g_idx", tensors["g_idx"], (torch.int32,), (columns,))
        self._block(bits, columns, groups)

    def layer(
        self, tensors: Mapping[str, Tensor], rows: int, columns: int, bias: Tensor | None
    ) -> nn.Module:
        """See `CheckpointFormat`."""
        scales = tensors["scales"]
        expect_finite("scales", scales)
        data = bytes_of_words(tensors["qweight"]).transpose(0, 1).reshape(rows, -1)
        bits, groups = 8 * data.shape[1] // columns, len(scales)
        group = self._group(columns, groups)
        order = _order(tensors.get("g_idx"), columns, group)
        zeros = bytes_of_words(tensors["qzeros"]).flatten(1)
        zeros = (nibbles(zeros) if bits == 4 else zeros).int()
        zeros = zeros + self._less(zeros, bits)
        block = self._block(bits, columns, groups)
        repeat = torch.arange(0, columns, block, device=scales.device) // group
        made: LinearInt4 | LinearInt8
        if bits == 4:
            codes = nibbles(data) if order is None else nibbles(data)[:, order]
            scale = scales.float()
            zero = -scale * zeros
            weight = (packed(codes), scale[repeat].T.contiguous(), zero[repeat].T.contiguous())
            made = LinearInt4.from_weight(Int4Weight(*weight, block), bias)
        else:
            codes = (data if order is None else data[:, order]) ^ 128
            scale = scales[repeat].T.contiguous()
            made = LinearInt8.from_weight(Int8Weight(codes.view(torch.int8), scale), bias)
            if not bool((zeros == 128).all()):
                offsets = scales.float() * (128 - zeros)
                made = LinearInt8Zeros.with_offsets(made, offsets[repeat].T.contiguous())
        return made if order is None else Reordered(made, order)

    def tensors(self, layer: Any) -> dict[str, Tensor]:
        """See `CheckpointFormat`."""
        order = layer.order if isinstance(layer, Reordered) else None
        made = layer.layer if isinstance(layer, Reordered) else layer
        columns = made.in_features
        group = columns if self.group_size < 1 else min(self.group_size, columns)
        step = group // (columns // made.scales.shape[1])
        scales = made.scales[:, ::step].T.contiguous()
        if isinstance(made, LinearInt4):
            codes = unpack_int4(made.qweight)
            # Exact, because zeros are scales times whole numbers.
            zeros = (-made.zeros[:, ::step].T / scales).nan_to_num(8, 8, 8)
            scales = as_half(scales)
        else:
            codes = made.qweight.view(torch.uint8) ^ 128
            zeros = torch.full_like(scales, 128, dtype=torch.float32)
            if isinstance(made, LinearInt8Zeros):
                zeros -= (made.offsets[:, ::step].T / scales.float()).nan_to_num(0, 0, 0)
        g_idx = torch.arange(columns, dtype=torch.int32, device=codes.device) // group
        if order is not None:
            inverse = order.argsort()
            codes, g_idx = codes[:, inverse], g_idx[inverse]
        stored = (zeros.round() - self.less).to(torch.uint8)
        if isinstance(made, LinearInt4):
            codes, stored = from_nibbles(codes), from_nibbles(stored)
        return {
            "qweight": words_of_bytes(codes.unflatten(1, (-1, 4)).transpose(0, 1)),
            "qzeros": words_of_bytes(stored.unflatten(1, (-1, 4))),
            "scales": scales,
            "g_idx": g_idx,
        }

    def _less(self, zeros: Tensor, bits: int) -> int:
        half = 1 << (bits - 1)
        # Some programs write zeros of the second version and name the first one.
        return 0 if self.symmetric and bool((zeros == half).all()) else self.less

    def _group(self, columns: int, groups: int) -> int:
        """The in features of a group; the last group may be shorter."""
        if self.group_size > 0 and -(-columns // self.group_size) == groups:
            return min(self.group_size, columns)
        return -(-columns // groups)

    def _block(self, bits: int, columns: int, groups: int) -> int:
        """The largest number of in features for which our layers can have one scale."""
        shared = math.gcd(self._group(columns, groups), columns)
        if bits == 8 and shared % 32 == 0:
            return shared
        for block in (128, 64, 32):
            if shared % block == 0:
                return block
        raise ValueError(
            f"scales has {groups} groups of {columns} in features; groups must be a multiple of 32"
        )


def _order(g_idx: Tensor | None, columns: int, group: int) -> Tensor | None:
    """The in features sorted by their groups; None if they are sorted already."""
    if g_idx is None:
        return None
    order = g_idx.argsort(stable=True)
    expected = torch.arange(columns, device=g_idx.device) // group
    if not torch.equal(g_idx[order].long(), expected):
        raise ValueError(f"g_idx must name every group {group} times, except the last one")
    return None if torch.equal(g_idx.long(), expected) else order
