"""Prints digests of what operators compute: sums in another order have other bits."""

from __future__ import annotations

import hashlib

import fusewheel
import torch
from torch import Tensor

DTYPES = {"FLOAT32": torch.float32, "BFLOAT16": torch.bfloat16, "FLOAT16": torch.float16}


def show(name: str, *tensors: Tensor) -> None:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    print(f"{name}={digest.hexdigest()}")


def main() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, 1000), torch.randn(64, 1000)
    show("ISA", fusewheel.rms_norm(x, weight[0].shape, weight[0], 1e-6))
    # The same bits, whichever rows of the weight are read at once: 300 are no whole parts.
    show("ONE_ROW", fusewheel.linear(x[:1], torch.randn(300, 1000)))
    query, cache = torch.randn(1, 4, 1, 128), torch.randn(2, 1, 2, 500, 128)
    show("FAR_ROWS", fusewheel.attention_decode(query, *cache, torch.tensor([500])))
    wide, other = torch.randn(40, 1024), torch.randn(600, 1024)
    show("SPREAD_ROWS", fusewheel.linear(wide, other))
    codes, scales = (weight * 40).to(torch.int8), weight[:, 0].exp()
    show("ROWS_IN_TURN", fusewheel.linear_int8(x[:1], codes, scales))
    show("VNNI", fusewheel.linear_int8(x[:3], codes, scales, dynamic=True))
    show("INTEGERS", fusewheel.linear_int8(x, codes, scales, dynamic=True))
    blocks = torch.randint(0, 120, (64, 4, 34), dtype=torch.uint8)
    show("BLOCKS", fusewheel.linear_blocks(x[:, :128].bfloat16(), blocks, "Q8_0"))
    grouped = x[:, :128].bfloat16(), blocks[None], "Q8_0", torch.tensor([64])
    show("GROUPED_BLOCKS", fusewheel.grouped_linear_blocks(*grouped))
    q, k, v = (torch.randn(1, 2, 70, 40).bfloat16().requires_grad_() for _ in range(3))
    out = fusewheel.attention(q, k, v, causal=True)
    show("ATTENTION", out)
    show("ATTENTION_BACKWARD", *torch.autograd.grad(out.sum(), (q, k, v)))
    target = torch.randint(0, 300, (40,))
    for name, dtype in DTYPES.items():
        leaves = [torch.randn(n, 500).to(dtype).requires_grad_() for n in (40, 300)]
        loss = fusewheel.linear_cross_entropy(*leaves, target)
        show(f"OWN_{name}", *torch.autograd.grad(loss, leaves))
        y = fusewheel.linear(*leaves)
        show(f"LINEAR_{name}", y.detach(), *torch.autograd.grad(y.sum(), leaves))


if __name__ == "__main__":
    main()
