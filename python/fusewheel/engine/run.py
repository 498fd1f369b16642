"""What Python adds to the operator ``fusewheel::run``; its kernel is in C++.

* a fake, which computes the results' shapes from the argument `outputs`;
* `Autograd`: a call that would need a gradient is refused, because a program records none;
* `CUDA`: a clear error, because programs run on a CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fusewheel._torch.autograd import below_autograd, in_forward_mode
from fusewheel.engine.bound import has_trained_weights
from fusewheel.engine.outputs import read_outputs

_library = torch.library.Library("fusewheel", "IMPL")


def _fake(program: Tensor, inputs: Sequence[Tensor], outputs: Sequence[int]) -> list[Tensor]:
    return [
        torch.empty_strided(sizes, strides, dtype=dtype, device=program.device)
        for dtype, sizes, strides in read_outputs(outputs, inputs)
    ]


def _autograd(program: Tensor, inputs: Sequence[Tensor], outputs: Sequence[int]) -> list[Tensor]:
    if in_forward_mode() or (
        torch.is_grad_enabled()
        and (any(tensor.requires_grad for tensor in inputs) or has_trained_weights(program))
    ):
        raise RuntimeError(
            "run: a program records no gradient, and an input or weight requires one; call it "
            "under torch.no_grad(), or compile the model for training without the engine"
        )
    with below_autograd():
        found: list[Tensor] = torch.ops.fusewheel.run(program, inputs, outputs)
        return found


def _cuda(program: Tensor, inputs: Sequence[Tensor], outputs: Sequence[int]) -> list[Tensor]:
    raise RuntimeError("run: programs run on a CPU only, got a tensor on another device")


torch.library.register_fake("fusewheel::run", _fake, lib=_library)
_library.impl("run", _autograd, "Autograd")
_library.impl("run", _cuda, "CUDA")
