"""The machine and the versions that a process finds."""

from __future__ import annotations

import os
import platform
from typing import Any


def facts() -> dict[str, Any]:
    """The facts in the heading of the demo's report."""
    import transformers

    return hardware() | {"transformers": transformers.__version__}


def hardware() -> dict[str, Any]:
    """The facts that every figure depends on; the benchmark uses them too."""
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
    """The vector instructions that PyTorch uses, and instructions for bf16 matrices if there are
    any.
    """
    import torch

    level = torch.backends.cpu.get_cpu_capability()
    # The oldest supported torch does not have it, and it ignores a level that was asked for.
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    extras = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}
    names = [name for key, name in extras.items() if found.get(key) and level == "AVX512"]
    return ", ".join([level, *names])


def _cpu_name() -> str:
    from fusewheel.compiler.cost import processor

    name = processor.of_cpuinfo("model name")
    return name or platform.processor() or platform.machine()
