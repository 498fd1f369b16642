"""Random layers in the formats of quantised checkpoints, and the weights that they stand for.

Everything is written from the tables of the formats, number by number, so that nothing is shared
with the code that reads them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from fusewheel.ops.linear._blocks import FP4, NF4
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]
"""Tensors by name, and the weight `[N, K]` in float32."""
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed + 1000 * (torch.initial_seed() % 2**32))


def _words(codes: np.ndarray, bits: int) -> Tensor:
    """Codes `[words, codes of a word, columns]`, the first one in the lowest bits."""
    shifts = (bits * np.arange(codes.shape[1], dtype=np.uint32))[None, :, None]
    words = (codes.astype(np.uint32) << shifts).sum(1, dtype=np.uint32)
    return torch.from_numpy(words.view(np.int32))


def _scales(random: np.random.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(random.uniform(0.005, 0.02, shape)).to(dtype)


def gptq(
    rows: int,
    columns: int,
    bits: int = 4,
    group: int = 32,
    act_order: bool = False,
    sym: bool = False,
    less: int = 1,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Stored:
    """`less` is 1 for the first version of the format, 0 for the second."""
    random, per = _generator(seed), 32 // bits
    size = columns if group < 1 else group
    groups = -(-columns // size)
    g_idx = np.arange(columns, dtype=np.int32) // size
    g_idx = random.permutation(g_idx) if act_order else g_idx
    codes = random.integers(0, 2**bits, (columns, rows))
    zeros = random.integers(less, 2**bits + less, (groups, rows))
    zeros = np.full_like(zeros, 2 ** (bits - 1)) if sym else zeros
    scales = _scales(random, groups, rows, dtype=dtype)
    packed = (zeros - less).reshape(groups, rows // per, per).swapaxes(1, 2)
    tensors = {
        "qweight": _words(codes.reshape(columns // per, per, rows), bits),
        "qzeros": torch.cat([_words(each[None], bits) for each in packed]),
        "scales": scales,
        "g_idx": torch.from_numpy(g_idx),
    }
    weight = scales.float().numpy()[g_idx] * (codes - zeros[g_idx]).astype(np.float32)
    return tensors, torch.from_numpy(weight.T.copy())


def awq(rows: int, columns: int, group: int = 32, seed: int = 0) -> Stored:
    """Version "gemm"."""
    random = _generator(seed)
    size = columns if group < 1 else group
    codes = random.integers(0, 16, (columns, rows))
    zeros = random.integers(0, 16, (columns // size, rows))
    scales = _scales(random, columns // size, rows, dtype=torch.float16)

    def stored(codes: np.ndarray) -> Tensor:
        words = np.zeros((len(codes), rows // 8), np.uint32)
        for column in range(rows):
            place = 4 * _AWQ[column % 8]
            words[:, column // 8] |= codes[:, column].astype(np.uint32) << np.uint32(place)
        return torch.from_numpy(words.view(np.int32))

    tensors = {"qweight": stored(codes), "qzeros": stored(zeros), "scales": scales}
    groups = np.arange(columns) // size
    weight = scales.float().numpy()[groups] * (codes - zeros[groups]).astype(np.float32)
    return tensors, torch.from_numpy(weight.T.copy())


def bitsandbytes(
    rows: int, columns: int, kind: str = "nf4", nested: bool = True, size: int = 64, seed: int = 0
) -> Stored:
    """4 bits, with nested scales or without."""
    random = _generator(seed)
    codes = random.integers(0, 16, rows * columns)
    blocks = rows * columns // size
    table = np.array(NF4 if kind == "nf4" else FP4, np.float32)
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": size,
        "dtype": "float32",
        "shape": [rows, columns],
    }
    tensors = {
        "weight": torch.from_numpy((codes[0::2] << 4 | codes[1::2]).astype(np.uint8))[:, None],
        "weight.quant_map": torch.from_numpy(table),
    }
    absmax = random.uniform(0.01, 0.2, blocks).astype(np.float32)
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0625}
        absmax_codes = random.integers(0, 256, blocks).astype(np.uint8)
        nested_map = np.sort(random.uniform(-1, 1, 256).astype(np.float32))
        scales = random.uniform(0.01, 0.05, -(-blocks // 256)).astype(np.float32)
        tensors |= {
            "weight.absmax": torch.from_numpy(absmax_codes),
            "weight.nested_absmax": torch.from_numpy(scales),
            "weight.nested_quant_map": torch.from_numpy(nested_map),
        }
        absmax = nested_map[absmax_codes] * scales[np.arange(blocks) // 256]
        absmax = absmax + np.float32(state["nested_offset"])
    else:
        tensors["weight.absmax"] = torch.from_numpy(absmax)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
    weight = table[codes] * absmax[np.arange(rows * columns) // size]
    return tensors, torch.from_numpy(weight.reshape(rows, columns))


def fp8(
    rows: int,
    columns: int,
    block: tuple[int, int] | None = (128, 128),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Stored:
    """Scales of blocks; the last blocks may be short."""
    random = _generator(seed)
    codes = random.integers(0, 256, (rows, columns)).astype(np.uint8)
    codes[(codes & 127) == 127] = 0
    height, width = block or (rows, columns)
    scales = _scales(random, -(-rows // height), -(-columns // width), dtype=dtype)
    stored = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    row, column = np.arange(rows) // height, np.arange(columns) // width
    weight = stored.float() * scales.float()[row][:, column]
    return {"weight": stored, "weight_scale_inv": scales if block else scales.view(())}, weight
