"""Linear layers and embeddings whose weight stays in stored blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from fusewheel.ops.choices import BlockKind
from fusewheel.ops.linear._blocks import FORMATS, decode_blocks
from fusewheel.ops.linear.linear_blocks import linear_blocks
from fusewheel.quantization.block_rounding import RoundedKind, quantize_blocks


def dequantize_blocks(blocks: Tensor, kind: BlockKind) -> Tensor:
    """The weight that `linear_blocks` multiplies by.

    Args:
        blocks: `[..., K / weights, bytes]`, uint8.
        kind: the name of the format, see `linear_blocks`.

    Returns:
        `[..., K]`, float32.

    Raises:
        ValueError: `kind` is unknown, or the blocks have another dtype or size.
    """
    check_blocks("dequantize_blocks", blocks, kind)
    return decode_blocks(blocks, FORMATS[kind].number, torch.float32)


def check_blocks(what: str, blocks: Tensor, kind: BlockKind, dimensions: int = 0) -> None:
    """Raises ValueError unless blocks have the dtype and shape of their kind."""
    if kind not in FORMATS:
        raise ValueError(f"{what}: kind must be one of {', '.join(FORMATS)}, got {kind!r}")
    size = FORMATS[kind].bytes
    if blocks.dtype != torch.uint8 or blocks.dim() < 2 or blocks.shape[-1] != size:
        raise ValueError(
            f"{what}: blocks must be uint8 of shape [..., blocks, {size}] for {kind}, got "
            f"{blocks.dtype} of shape {list(blocks.shape)}"
        )
    if dimensions and blocks.dim() != dimensions:
        raise ValueError(
            f"{what}: blocks must have {dimensions} dimensions, got shape {list(blocks.shape)}"
        )


class StoredBlocks(nn.Module):
    """What layers share whose weight stays in stored blocks.

    Instead of `weight` they have the buffer `blocks`, which a cast to another dtype leaves as it
    is. Input and bias have gradients.

    Args:
        blocks: `[..., N, K / weights, bytes]`, uint8, of as many dimensions as the class says. They
            are held, not copied.
        kind: the name of the format, `"Q4_K"`.
        bias: `[..., N]`; default None.

    Raises:
        ValueError: `kind` is unknown, or the blocks have another dtype or shape.
    """

    dimensions = 3
    blocks: Tensor
    bias: Parameter | None

    def __init__(self, blocks: Tensor, kind: BlockKind, bias: Tensor | None = None) -> None:
        super().__init__()
        check_blocks(type(self).__name__, blocks, kind, self.dimensions)
        self.kind = kind
        self.out_features = blocks.shape[-3]
        self.in_features = blocks.shape[-2] * FORMATS[kind].weights
        self.register_buffer("blocks", blocks)
        held = bias if bias is None or isinstance(bias, Parameter) else Parameter(bias)
        self.register_parameter("bias", held)

    def extra_repr(self) -> str:
        """The text that `print` shows for the layer."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, kind={self.kind}"
        )


class LinearBlocks(StoredBlocks):
    """A linear layer whose weight stays in stored blocks; see `linear_blocks`.

    Instead of `weight` it has the buffer `blocks`, which a cast to another dtype leaves as it is.
    Input and bias have gradients.

    Source: `torch.nn.Linear`; `fusewheel.linear_blocks` has the formats.

    Args:
        blocks: `[N, K / weights, bytes]`, uint8. It is held, not copied.
        kind: the name of the format, `"Q4_K"`.
        bias: `[N]`; default None.

    Raises:
        ValueError: `kind` is unknown, or the blocks have another dtype or shape.
    """

    @classmethod
    def from_linear(cls, linear: nn.Linear, kind: RoundedKind) -> LinearBlocks:
        """Quantises a layer, see `quantize_blocks`; the bias is shared with it."""
        weight = linear.weight.detach()
        if weight.is_meta:
            format = FORMATS[kind]
            sizes = weight.shape[0], weight.shape[1] // format.weights, format.bytes
            blocks = torch.empty(sizes, dtype=torch.uint8, device="meta")
        else:
            blocks = quantize_blocks(weight, kind)
        return cls(blocks, kind, linear.bias).train(linear.training)

    @property
    def qweight(self) -> Tensor:
        """The blocks, by the name under which peft looks for a layer's device."""
        return self.blocks

    def forward(self, input: Tensor) -> Tensor:
        """`[..., K]` to `[..., N]`, in the dtype of `input`."""
        return linear_blocks(input, self.blocks, self.kind, self.bias)


class EmbeddingBlocks(nn.Module):
    """An embedding whose table stays in stored blocks: only the rows asked for are decoded.

    A linear layer may hold the same blocks, as the output layer of a language model does whose
    weight is that of its embedding.

    Source: `torch.nn.functional.embedding`.

    Args:
        blocks: `[rows, K / weights, bytes]`, uint8. It is held, not copied.
        kind: the name of the format, `"Q8_0"`.
        dtype: of the result; default None, which means torch's default. `to(dtype)` changes it.
        scale: what the rows are multiplied by, rounded to `dtype`; default None, which means 1.

    Raises:
        ValueError: `kind` is unknown, or the blocks have another dtype or shape.
    """

    blocks: Tensor

    def __init__(
        self,
        blocks: Tensor,
        kind: BlockKind,
        dtype: torch.dtype | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        check_blocks("EmbeddingBlocks", blocks, kind)
        self.kind = kind
        self.num_embeddings = blocks.shape[0]
        self.embedding_dim = blocks.shape[1] * FORMATS[kind].weights
        self.dtype = dtype or torch.get_default_dtype()
        self.scale = scale
        self.register_buffer("blocks", blocks)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EmbeddingBlocks:
        super()._apply(fn, recurse)
        # A cast has no floating tensor here that it could change.
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.blocks.device)).dtype
        return self

    def forward(self, input: Tensor) -> Tensor:
        """Whole numbers of any shape to `[..., K]`."""
        rows = decode_blocks(self.blocks[input], FORMATS[self.kind].number, self.dtype)
        if self.scale is None:
            return rows
        return rows * torch.full((), self.scale, dtype=self.dtype, device=rows.device)

    def extra_repr(self) -> str:
        """The text that `print` shows for the layer."""
        return f"{self.num_embeddings}, {self.embedding_dim}, kind={self.kind}"
