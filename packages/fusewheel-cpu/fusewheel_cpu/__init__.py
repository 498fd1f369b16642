"""CPU kernels of fusewheel: says where they are; `import fusewheel` loads them."""

from __future__ import annotations

import json
from pathlib import Path

_HERE = Path(__file__).parent

device = "cpu"
library = _HERE / "libfusewheel_cpu.so"
facts: dict[str, str] = json.loads((_HERE / "build.json").read_text())


def unavailable() -> Exception | None:
    """Why these kernels cannot run here: a CPU is always there."""
    return None
