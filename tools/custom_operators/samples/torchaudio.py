"""Operators of torchaudio."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torchaudio
from tried import Tried

assert torchaudio


def operators() -> Iterator[Tried]:
    """All of them."""
    torch.manual_seed(0)
    ops = torch.ops.torchaudio
    targets, two, three = (torch.tensor(v, dtype=torch.int32) for v in ([[1, 2]], [2], [3]))
    log_probs = torch.randn(1, 6, 4).log_softmax(-1)
    six = torch.tensor([6], dtype=torch.int32)
    yield Tried(ops.forced_align.default, [(log_probs, targets, six, two, 0)])
    logits = torch.randn(1, 3, 3, 4)
    yield Tried(ops.rnnt_loss_forward.default, [(logits, targets, three, two, 3, -1.0, True)])
    waveform = torch.rand(1, 2, 6)
    tensors = (waveform, torch.rand(2, 3) / 4, torch.zeros(1, 2, 8))
    yield Tried(ops._lfilter_core_loop.default, [tensors])
    wave = torch.rand(2, 6)
    yield Tried(
        ops._overdrive_core_loop.default,
        [(wave, wave.tanh(), torch.zeros(2), torch.zeros(2), torch.zeros(2, 6))],
    )
