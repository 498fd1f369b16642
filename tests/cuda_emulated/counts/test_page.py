"""The page says what is counted."""

from __future__ import annotations

import pytest
from cuda_emulated.counts.cases import CASES, PREDICTED, Case
from cuda_emulated.counts.counted import counted
from cuda_emulated.counts.page import PAGE, page
from cuda_emulated.counts.predicted import GPUS, share, stored

H100 = next(gpu for gpu in GPUS if gpu.name == "H100 SXM")
LONG = 4096
"""Elements of a row."""
NEAR_THE_ROOF = 0.9
NORMS_AND_LOSSES = [
    case
    for case in CASES
    if ("norm" in case.operator or "cross_entropy" in case.operator)
    and int(case.what.rpartition(" x ")[2]) >= LONG
]
AGAIN = "write it again: python noxfile.py -s cuda_counts"


def test_the_page_is_what_was_counted():
    assert PAGE.read_text() == page(), AGAIN


def test_what_predictions_are_made_from_is_what_was_counted():
    assert [stored(case) for case in PREDICTED] == [counted(case).moved for case in PREDICTED], (
        AGAIN
    )


@pytest.mark.parametrize("case", NORMS_AND_LOSSES, ids=lambda case: case.name)
def test_norms_and_losses_of_long_rows_are_predicted_near_the_roof_of_a_copy(case: Case):
    assert share(stored(case), H100) >= NEAR_THE_ROOF
