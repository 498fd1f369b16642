"""Tests whether an operator of any package works in every part of PyTorch.

    fusewheel.doctor.check(torch.ops.my_package.my_op.default, [(torch.randn(3, 4),)])

or, from a shell, `python -m fusewheel doctor my_package::my_op --samples my_module:samples`.
"""

from __future__ import annotations

from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.examination import cases_of, check, columns_named, subject_of
from fusewheel.doctor.outcome import Outcome, Status
from fusewheel.doctor.report import Report
from fusewheel.doctor.testing import tests_of

__all__ = [
    "COLUMNS",
    "Column",
    "Outcome",
    "Report",
    "Status",
    "cases_of",
    "check",
    "columns_named",
    "subject_of",
    "tests_of",
]
