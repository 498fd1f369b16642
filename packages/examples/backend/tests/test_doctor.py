"""The doctor of fusewheel on tensors of the device. It stands before the other tests: it forks, and
PyTorch refuses a backward in a fork of a process that has run one on a device.
"""

from __future__ import annotations

import fusewheel
import torch


def test_the_doctor_tries_it_on_the_device() -> None:
    samples = [(torch.randn(3, 4, device="toy"), torch.randn(4, device="toy"))]
    columns = ["permuted", "expanded", "gradient", "forward mode", "vmap", "compile"]
    report = fusewheel.doctor.check(torch.ops.fusewheel.mul, samples, columns=columns)
    assert len(report.of(fusewheel.doctor.Status.WORKS)) == len(columns), str(report)
