"""A plugin of pytest (`-p on_gpu.plugin`): operators run on the GPU, also for CPU tensors."""

from __future__ import annotations

import pytest
import torch
from on_gpu.carried import carried
from on_gpu.required import require_gpu

DEVICE = "cuda"
_libraries: list[torch.library.Library] = []  # kernels live as long as theirs


def pytest_configure(config: pytest.Config) -> None:
    require_gpu()
    from fusewheel import ops

    library = torch.library.Library("fusewheel", "IMPL")
    _libraries.append(library)
    for operator in ops.operators():
        kernel = carried(operator.overload, DEVICE, operator.mutates is not None)
        library.impl(operator.name, kernel, "CPU")
