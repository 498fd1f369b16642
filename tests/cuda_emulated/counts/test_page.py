"""The page says what is counted."""

from __future__ import annotations

from cuda_emulated.counts.cases import CASES
from cuda_emulated.counts.counted import counted
from cuda_emulated.counts.page import PAGE, page
from cuda_emulated.counts.predicted import stored

AGAIN = "write it again: python noxfile.py -s cuda_counts"


def test_the_page_is_what_was_counted():
    assert PAGE.read_text() == page(), AGAIN


def test_what_predictions_are_made_from_is_what_was_counted():
    assert [stored(case) for case in CASES] == [counted(case).moved for case in CASES], AGAIN
