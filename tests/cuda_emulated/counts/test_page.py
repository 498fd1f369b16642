"""The page says what is counted."""

from __future__ import annotations

from cuda_emulated.counts.page import PAGE, page


def test_the_page_is_what_was_counted():
    assert PAGE.read_text() == page(), "write it again: python noxfile.py -s cuda_counts"
