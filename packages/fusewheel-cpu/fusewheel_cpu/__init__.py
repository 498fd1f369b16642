"""CPU kernels of fusewheel: says where they are; `import fusewheel` loads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_NAMES = {"darwin": "libfusewheel_cpu.dylib", "win32": "fusewheel_cpu.dll"}

device = "cpu"
library = _HERE / _NAMES.get(sys.platform, "libfusewheel_cpu.so")
facts: dict[str, str] = json.loads((_HERE / "build.json").read_text())


def unavailable() -> Exception | None:
    """Why these kernels cannot run here: a CPU is always there."""
    return None
