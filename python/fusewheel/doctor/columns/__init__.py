"""The columns, in the order in which they are reported."""

from __future__ import annotations

from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import (
    autograd,
    compilers,
    deployment,
    devices,
    distributed,
    exporting,
    huge,
    layouts,
    memory,
    modes,
    processes,
    second,
    torchscript,
    transforms,
    values,
)

COLUMNS: tuple[Column, ...] = (
    *values.COLUMNS,
    *huge.COLUMNS,
    *memory.COLUMNS,
    *layouts.COLUMNS,
    *autograd.COLUMNS,
    *second.COLUMNS,
    *transforms.COLUMNS,
    *compilers.COLUMNS,
    *exporting.COLUMNS,
    *torchscript.COLUMNS,
    *deployment.COLUMNS,
    *modes.COLUMNS,
    *processes.COLUMNS,
    *distributed.COLUMNS,
    *devices.COLUMNS,
)
