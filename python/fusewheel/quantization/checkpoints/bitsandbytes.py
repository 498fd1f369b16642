"""Checkpoints of bitsandbytes in 4 bits.

Source: Dettmers et al., "QLoRA" (2023); the tensors are those of bitsandbytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel.ops.choices import BlockKind
from fusewheel.ops.linear._blocks import FORMATS, FP4, NF4
from fusewheel.quantization.block_modules import LinearBlocks
from fusewheel.quantization.checkpoints.stored import (
    CheckpointFormat,
    expect,
    expect_finite,
    from_nibbles,
    nibbles,
)
from fusewheel.quantization.formats import packed, unpack_int4

_TABLES = {"nf4": NF4, "fp4": FP4}
_BLOCKS: dict[str, BlockKind] = {"nf4": "NF4", "fp4": "FP4"}
_STATE = "weight.quant_state.bitsandbytes__"
_WEIGHTS = FORMATS["NF4"].weights


@dataclass(frozen=True)
class BitsAndBytes4(CheckpointFormat):
    """`w = table[code] * absmax`, of NF4 or FP4, over blocks of the flattened weight.

    | tensor | dtype, shape |
    |---|---|
    | `weight` | `[N * K / 2, 1]` bytes (of any dtype); of two neighbours, the first is in the high half |
    | `weight.absmax` | float32 `[blocks]`; or uint8, codes of nested blocks |
    | `weight.quant_map` | float32 `[16]`, the table |
    | `weight.nested_absmax`, `weight.nested_quant_map` | float32 `[nested blocks]`, `[256]`: `absmax = nested_quant_map[code] * nested_absmax + nested_offset` |
    | `weight.quant_state.bitsandbytes__nf4` or `__fp4` | JSON: `blocksize`, `shape`, and `nested_blocksize`, `nested_offset` |

    Attributes:
        kind: `"nf4"` or `"fp4"`.
    """  # noqa: E501

    required = ("weight", "weight.quant_map", "weight.absmax")
    optional = (
        "weight.nested_absmax",
        "weight.nested_quant_map",
        *(f"{_STATE}{kind}" for kind in _TABLES),
    )

    kind: str = "nf4"

    @classmethod
    def of(cls, config: Any) -> BitsAndBytes4:
        """See `CheckpointFormat`."""
        kind = config.bnb_4bit_quant_type
        if kind not in _TABLES:
            raise ValueError(f"bnb_4bit_quant_type must be 'nf4' or 'fp4', got {kind!r}")
        return cls(kind)

    def check(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """See `CheckpointFormat`."""
        if columns % _WEIGHTS:
            raise ValueError(
                f"in features must be a multiple of {_WEIGHTS}, got {columns}: a block would have "
                "weights of two rows"
            )
        weight = tensors["weight"]
        if 2 * weight.numel() * weight.element_size() != rows * columns:
            raise ValueError(
                f"weight must have {rows * columns // 2} bytes for shape {[rows, columns]}, got "
                f"{weight.numel() * weight.element_size()}"
            )
        expect("weight.quant_map", tensors["weight.quant_map"], (torch.float32,), (16,))
        if f"{_STATE}{self.kind}" not in tensors:
            raise ValueError(f"{_STATE}{self.kind} is missing")
        absmax = tensors["weight.absmax"]
        nested = absmax.dtype == torch.uint8
        expect("weight.absmax", absmax, (torch.float32, torch.uint8), (absmax.numel(),))
        if nested and not {"weight.nested_absmax", "weight.nested_quant_map"} <= set(tensors):
            raise ValueError("weight.absmax is uint8, but there is no weight.nested_absmax")
        if nested:
            second = tensors["weight.nested_absmax"]
            expect("weight.nested_absmax", second, (torch.float32,), (second.numel(),))
            table = tensors["weight.nested_quant_map"]
            expect("weight.nested_quant_map", table, (torch.float32,), (256,))

    def layer(
        self, tensors: Mapping[str, Tensor], rows: int, columns: int, bias: Tensor | None
    ) -> nn.Module:
        """See `CheckpointFormat`."""
        state = self._state(tensors, rows, columns)
        table = torch.tensor(_TABLES[self.kind], device=tensors["weight"].device)
        if not torch.equal(tensors["weight.quant_map"], table):
            raise ValueError(f"weight.quant_map is not the table of {self.kind}")
        size = state["blocksize"]
        absmax = tensors["weight.absmax"]
        if absmax.dtype == torch.uint8:
            absmax = _unnested(tensors, state)
        expect_finite("weight.absmax", absmax)
        expect("weight.absmax", absmax, (torch.float32,), (rows * columns // size,))
        scales = absmax.repeat_interleave(size // _WEIGHTS).view(rows, -1, 1)
        data = tensors["weight"].contiguous().view(-1).view(torch.uint8)
        codes = packed(nibbles(_swapped(data)).view(rows, columns // _WEIGHTS, _WEIGHTS))
        blocks = torch.cat((scales.view(torch.uint8), codes), -1)
        return LinearBlocks(blocks, _BLOCKS[self.kind], bias)

    def tensors(self, layer: Any) -> dict[str, Tensor]:
        """See `CheckpointFormat`. Scales are not nested again, so that they keep their bits."""
        rows, columns = layer.out_features, layer.in_features
        state = {
            "quant_type": self.kind,
            "blocksize": _WEIGHTS,
            "dtype": "float32",
            "shape": [rows, columns],
        }
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        data = _swapped(from_nibbles(unpack_int4(layer.blocks[..., 4:]).flatten()))
        return {
            "weight": data.unsqueeze(1),
            "weight.absmax": layer.blocks[..., :4].contiguous().view(torch.float32).flatten(),
            "weight.quant_map": torch.tensor(_TABLES[self.kind]),
            f"{_STATE}{self.kind}": text,
        }

    def _state(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> dict[str, Any]:
        name = f"{_STATE}{self.kind}"
        try:
            state = json.loads(bytes(tensors[name].tolist()))
        except ValueError as error:
            raise ValueError(f"{name} is no JSON: {error}") from error
        shape = state.get("shape") if isinstance(state, dict) else None
        if shape != [rows, columns]:
            raise ValueError(f"{name} has shape {shape}, expected {[rows, columns]}")
        size = state.get("blocksize")
        if not isinstance(size, int) or size < _WEIGHTS or size % _WEIGHTS or columns % size:
            raise ValueError(
                f"{name} has blocksize {size}; it must be a multiple of {_WEIGHTS} that divides "
                f"the {columns} in features"
            )
        return state


def _swapped(data: Tensor) -> Tensor:
    """The bytes with both halves exchanged."""
    return data << 4 | data >> 4


def _unnested(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Tensor:
    codes, scales = tensors["weight.absmax"], tensors["weight.nested_absmax"]
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if not isinstance(size, int) or size < 1 or not isinstance(offset, (int, float)):
        raise ValueError(
            "the quantisation state must have numbers nested_blocksize and nested_offset, got "
            f"{size} and {offset}"
        )
    expect("weight.nested_absmax", scales, (torch.float32,), (-(-codes.numel() // size),))
    spread = scales.repeat_interleave(size)[: codes.numel()]
    # Two roundings, as in bitsandbytes.
    return tensors["weight.nested_quant_map"][codes.int()] * spread + offset
