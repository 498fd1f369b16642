"""The columns, in the order in which they are reported."""

from __future__ import annotations

from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import (
    autograd,
    compilers,
    exporting,
    layouts,
    memory,
    modes,
    processes,
    torchscript,
    transforms,
    values,
)

COLUMNS: tuple[Column, ...] = (
    *values.COLUMNS,
    *memory.COLUMNS,
    *layouts.COLUMNS,
    *autograd.COLUMNS,
    *transforms.COLUMNS,
    *compilers.COLUMNS,
    *exporting.COLUMNS,
    *torchscript.COLUMNS,
    *modes.COLUMNS,
    *processes.COLUMNS,
)
