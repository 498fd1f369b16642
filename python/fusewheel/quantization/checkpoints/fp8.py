"""Checkpoints in FP8 with scales of blocks, as DeepSeek-V3's.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.quantization.block_modules import LinearBlocks
from fusewheel.quantization.checkpoints.stored import CheckpointFormat, expect, expect_finite

_WEIGHTS = FORMATS["FP8"].weights
_SCALES = (torch.float32, torch.bfloat16, torch.float8_e8m0fnu)


@dataclass(frozen=True)
class Fp8(CheckpointFormat):
    """`w = code * scale`, with codes in float8_e4m3fn and a scale for each block of the weight.

    | tensor | dtype, shape |
    |---|---|
    | `weight` | float8_e4m3fn `[N, K]` |
    | `weight_scale_inv` | float32, bfloat16 or float8_e8m0fnu `[blocks of N, blocks of K]`: the scale itself, in spite of its name. Without blocks `[]` or `[1]` |

    Activations are not rounded, whatever `activation_scheme` says.

    Attributes:
        block: rows and columns of a block; None means that there is one scale.
    """  # noqa: E501

    required = ("weight", "weight_scale_inv")

    block: tuple[int, int] | None = (128, 128)

    @classmethod
    def of(cls, config: Any) -> Fp8:
        """See `CheckpointFormat`."""
        if config.activation_scheme != "dynamic":
            raise ValueError(
                f"activation_scheme must be 'dynamic', got {config.activation_scheme!r}"
            )
        block = config.weight_block_size
        if block is not None and block[1] % _WEIGHTS:
            raise ValueError(
                f"weight_block_size must have a multiple of {_WEIGHTS} columns, got {block[1]}"
            )
        return cls(None if block is None else (block[0], block[1]))

    def check(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """See `CheckpointFormat`."""
        if columns % _WEIGHTS:
            raise ValueError(f"in features must be a multiple of {_WEIGHTS}, got {columns}")
        expect("weight", tensors["weight"], (torch.float8_e4m3fn,), (rows, columns))
        scales = tensors["weight_scale_inv"]
        if self.block is not None:
            blocks = -(-rows // self.block[0]), -(-columns // self.block[1])
            expect("weight_scale_inv", scales, _SCALES, blocks)
        elif scales.numel() != 1:
            raise ValueError(f"weight_scale_inv must be one number, got shape {list(scales.shape)}")

    def layer(
        self, tensors: Mapping[str, Tensor], rows: int, columns: int, bias: Tensor | None
    ) -> nn.Module:
        """See `CheckpointFormat`."""
        codes = tensors["weight"].contiguous().view(torch.uint8)
        if bool(((codes & 127) == 127).any()):
            raise ValueError("weight must be finite, got NaN")
        scales = tensors["weight_scale_inv"].float()
        expect_finite("weight_scale_inv", scales)
        height, width = self.block or (rows, columns)
        spread = scales.reshape(-(-rows // height), -1)
        spread = spread.repeat_interleave(height, 0)[:rows]
        spread = spread.repeat_interleave(width // _WEIGHTS, 1)[:, : columns // _WEIGHTS]
        codes = codes.unflatten(1, (-1, _WEIGHTS))
        blocks = torch.cat((spread.contiguous().unsqueeze(-1).view(torch.uint8), codes), -1)
        return LinearBlocks(blocks, "FP8", bias)

    def tensors(self, layer: Any) -> dict[str, Tensor]:
        """See `CheckpointFormat`. Scales become float32."""
        height, width = self.block or (layer.out_features, layer.in_features)
        kept = layer.blocks[::height, :: width // _WEIGHTS, :4].contiguous()
        scales = kept.view(torch.float32).squeeze(-1)
        codes = layer.blocks[..., 4:].flatten(1)
        return {
            "weight": codes.view(torch.float8_e4m3fn),
            "weight_scale_inv": scales if self.block else scales.view(()),
        }
