"""Weights in stored blocks: the formats, and what their bytes mean, in PyTorch operators.

The kernels have the same in `fusewheel/linear/block_formats.h` and `block_decode.h`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.ops._checks import describe
from fusewheel.ops._rows import compute_dtype
from fusewheel.ops.choices import BlockKind
from fusewheel.ops.linear._quantized import unpack

IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
FP4 = (*_FP4, 0.0, *(-number for number in _FP4[1:]))
"""What the codes of 4-bit formats with a table stand for, before their scale."""


def _copy(part: Tensor) -> Tensor:
    # Not contiguous(), which leaves an empty tensor its strides. Views of another dtype ask for
    # dense memory.
    return part.clone(memory_format=torch.contiguous_format)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 number at byte `at` of each block, `[..., 1]` in float32."""
    return _copy(blocks[..., at : at + 2]).view(torch.float16).float()


def _single(blocks: Tensor) -> Tensor:
    """Likewise the float32 number at the start of each block."""
    return _copy(blocks[..., :4]).view(torch.float32)


def _power(blocks: Tensor) -> Tensor:
    """`2 ** (e - 128)` for the first byte `e` of each block."""
    code = blocks[..., :1].int()
    bits = torch.where(code < 2, 0x00200000 << code.clamp(max=1), (code - 1).clamp(min=0) << 23)
    return bits.view(torch.float32)


def _shifted(codes: Tensor, step: int, count: int) -> Tensor:
    """`codes [..., n]` shifted right by `count` multiples of `step`: `[..., count, n]`."""
    shifts = torch.arange(0, step * count, step, dtype=torch.uint8, device=codes.device)
    return codes.unsqueeze(-2) >> shifts.unsqueeze(-1)


def _spread(scales: Tensor, weights: int) -> Tensor:
    """Each number for so many neighbouring weights."""
    return scales.unsqueeze(-1).expand(*scales.shape, weights).flatten(-2)


def _from_table(table: tuple[float, ...], codes: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.int()]


def _fifth_bits(bits: Tensor) -> Tensor:
    """16 where bit `i` of 4 bytes is set, `[..., 32]`."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits.unsqueeze(-1) >> shifts & 1) << 4).flatten(-2)


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (unpack(blocks[..., 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * unpack(blocks[..., 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    codes = unpack(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return _half(blocks, 0) * (codes.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    codes = unpack(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return _half(blocks, 0) * codes.float() + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[..., 2:].to(torch.int8).float()


def _two_bits(codes: Tensor) -> Tensor:
    """The 256 codes in 64 bytes: of each half of 128, all lowest bits come first."""
    return (_shifted(codes.unflatten(-1, (2, 32)), 2, 4) & 3).flatten(-3)


def _q2_k(blocks: Tensor) -> Tensor:
    scales = blocks[..., :16]
    scale = _half(blocks, 80) * (scales & 15).float()
    offset = _half(blocks, 82) * (scales >> 4).float()
    return _spread(scale, 16) * _two_bits(blocks[..., 16:80]).float() - _spread(offset, 16)


def _q3_k(blocks: Tensor) -> Tensor:
    stored = blocks[..., 96:108]
    low = torch.cat((stored[..., :8] & 15, stored[..., :8] >> 4), -1)
    high = (_shifted(stored[..., 8:], 2, 4) & 3).flatten(-2)
    scale = _half(blocks, 108) * ((low | high << 4).float() - 32)
    # A bit that is set means: nothing is taken off.
    bits = (_shifted(blocks[..., :32], 1, 8) & 1).flatten(-2)
    codes = _two_bits(blocks[..., 32:96]).float() - 4 + 4 * bits.float()
    return _spread(scale, 16) * codes


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of the 8 sub-blocks of Q4_K and Q5_K."""
    first, second, last = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scale = torch.cat((first & 63, (last & 15) | (first >> 6) << 4), -1)
    minimum = torch.cat((second & 63, (last >> 4) | (second >> 6) << 4), -1)
    return _half(blocks, 0) * scale.float(), _half(blocks, 2) * minimum.float()


def _nibbles(codes: Tensor) -> Tensor:
    """The codes in bytes of which each 32 hold the low halves of 32 codes, then the high ones."""
    return (_shifted(codes.unflatten(-1, (codes.shape[-1] // 32, 32)), 4, 2) & 15).flatten(-3)


def _q4_k(blocks: Tensor) -> Tensor:
    scale, offset = _scales_and_minima(blocks)
    return _spread(scale, 32) * _nibbles(blocks[..., 16:]).float() - _spread(offset, 32)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, offset = _scales_and_minima(blocks)
    fifth = (_shifted(blocks[..., 16:48], 1, 8) & 1).flatten(-2) << 4
    codes = (_nibbles(blocks[..., 48:]) | fifth).float()
    return _spread(scale, 32) * codes - _spread(offset, 32)


def _q6_k(blocks: Tensor) -> Tensor:
    halves = blocks[..., :128].unflatten(-1, (2, 64))
    low = (_shifted(halves, 4, 2) & 15).flatten(-3)
    codes = low | _two_bits(blocks[..., 128:192]) << 4
    scale = _half(blocks, 208) * blocks[..., 192:208].to(torch.int8).float()
    return _spread(scale, 16) * (codes.float() - 32)


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _from_table(IQ4_NL, unpack(blocks[..., 2:]))


def _mxfp4(blocks: Tensor) -> Tensor:
    return _power(blocks) * _from_table(MXFP4, unpack(blocks[..., 1:]))


def _nf4(blocks: Tensor) -> Tensor:
    return _single(blocks) * _from_table(NF4, unpack(blocks[..., 4:]))


def _fp4(blocks: Tensor) -> Tensor:
    return _single(blocks) * _from_table(FP4, unpack(blocks[..., 4:]))


def _fp8(blocks: Tensor) -> Tensor:
    codes = _copy(blocks[..., 4:])
    return _single(blocks) * codes.view(torch.float8_e4m3fn).float()


@dataclass(frozen=True)
class BlockFormat:
    """How a kind of blocks is stored.

    Attributes:
        name: `"Q4_K"`.
        number: its number in schemas, that of ggml's type; ours begin at 1000.
        weights: how many weights a block has.
        bytes: how many bytes it takes.
        decode: from blocks `[..., bytes]` to float32 weights `[..., weights]`.
        halves: the bytes where float16 numbers begin.
        singles: the bytes where float32 numbers begin.
    """

    name: BlockKind
    number: int
    weights: int
    bytes: int
    decode: Callable[[Tensor], Tensor] = field(repr=False)
    halves: tuple[int, ...] = ()
    singles: tuple[int, ...] = ()


_ALL = (
    BlockFormat("Q4_0", 2, 32, 18, _q4_0, (0,)),
    BlockFormat("Q4_1", 3, 32, 20, _q4_1, (0, 2)),
    BlockFormat("Q5_0", 6, 32, 22, _q5_0, (0,)),
    BlockFormat("Q5_1", 7, 32, 24, _q5_1, (0, 2)),
    BlockFormat("Q8_0", 8, 32, 34, _q8_0, (0,)),
    BlockFormat("Q2_K", 10, 256, 84, _q2_k, (80, 82)),
    BlockFormat("Q3_K", 11, 256, 110, _q3_k, (108,)),
    BlockFormat("Q4_K", 12, 256, 144, _q4_k, (0, 2)),
    BlockFormat("Q5_K", 13, 256, 176, _q5_k, (0, 2)),
    BlockFormat("Q6_K", 14, 256, 210, _q6_k, (208,)),
    BlockFormat("IQ4_NL", 20, 32, 18, _iq4_nl, (0,)),
    BlockFormat("MXFP4", 39, 32, 17, _mxfp4),
    BlockFormat("NF4", 1000, 64, 36, _nf4, (), (0,)),
    BlockFormat("FP4", 1001, 64, 36, _fp4, (), (0,)),
    BlockFormat("FP8", 1002, 64, 68, _fp8, (), (0,)),
)
FORMATS: dict[str, BlockFormat] = {format.name: format for format in _ALL}
_BY_NUMBER = {format.number: format for format in _ALL}


def format_of(op: str, kind: int) -> BlockFormat:
    """The format with this number; raises the error of the kernel if there is none."""
    if kind not in _BY_NUMBER:
        fail(op, f"kind must be the number of a block format, got {kind}")
    return _BY_NUMBER[kind]


def kind_number(what: str, kind: str) -> int:
    """The number of the format with this name. TorchScript compiles it, so it names all again.

    Raises:
        ValueError: there is none; the message begins with `what`.
    """
    numbers = {
        "Q4_0": 2,
        "Q4_1": 3,
        "Q5_0": 6,
        "Q5_1": 7,
        "Q8_0": 8,
        "Q2_K": 10,
        "Q3_K": 11,
        "Q4_K": 12,
        "Q5_K": 13,
        "Q6_K": 14,
        "IQ4_NL": 20,
        "MXFP4": 39,
        "NF4": 1000,
        "FP4": 1001,
        "FP8": 1002,
    }
    if kind not in numbers:
        known = "', '".join(list(numbers.keys()))
        raise ValueError(f"{what}: kind must be one of '{known}', got '{kind}'")
    return numbers[kind]


def decode_blocks(blocks: Tensor, kind: int, dtype: torch.dtype) -> Tensor:
    """The weight `[N, K]` of blocks `[N, K / weights, bytes]`: float32 numbers, in `dtype`."""
    return _BY_NUMBER[kind].decode(blocks).flatten(-2).to(dtype)


def factor_of(x: Tensor, blocks: Tensor, kind: int) -> Tensor:
    """The weight `[N, K]` in the dtype in which a reference multiplies `x` by it.

    If `x` is bfloat16, the weight may be rounded to bfloat16 before it is multiplied.
    """
    weight = decode_blocks(blocks, kind, compute_dtype(x))
    return weight.bfloat16().to(weight.dtype) if x.dtype == torch.bfloat16 else weight


def check_blocks(op: str, blocks: Tensor, kind: int, x: Argument) -> BlockFormat:
    """Raises an error unless the blocks are of their format and on the device of `x`."""
    check_same_device(op, ("blocks", blocks), x)
    if blocks.dtype != torch.uint8:
        fail(op, f"blocks must be uint8, got {describe(blocks.dtype)}")
    format = format_of(op, kind)
    if blocks.dim() != 3 or blocks.shape[2] != format.bytes:
        fail(
            op,
            f"blocks must have shape [out features, blocks, {format.bytes}] for {format.name}, "
            f"got {list(blocks.shape)}",
        )
    return format
