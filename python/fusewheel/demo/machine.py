"""The machine and the versions as a process sees them."""

from __future__ import annotations

import os
import platform
from typing import Any


def facts() -> dict[str, Any]:
    """What the heading of the demo's report says."""
    import transformers

    return hardware() | {"transformers": transformers.__version__}


def hardware() -> dict[str, Any]:
    """What any figure taken here depends on; the benchmark says it too."""
    import torch

    return {
        "cpu": _cpu_name(),
        "capability": _capability(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _capability() -> str:
    """The vector instructions PyTorch uses, and what makes bf16 matrices fast if it is there."""
    import torch

    level = torch.backends.cpu.get_cpu_capability()
    # Newer than the oldest torch we support, and blind to a level that was asked for.
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    extras = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}
    names = [name for key, name in extras.items() if found.get(key) and level == "AVX512"]
    return ", ".join([level, *names])


def _cpu_name() -> str:
    from ..compiler import processor

    name = processor.of_cpuinfo("model name")
    return name or platform.processor() or platform.machine()
