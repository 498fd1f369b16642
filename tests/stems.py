"""Which operator a file is about."""

from __future__ import annotations

from collections.abc import Iterable


def owner(name: str, stems: Iterable[str]) -> str | None:
    """The stem that a file's name is, or that begins it: `rope` for `rope_edges`.

    Of several the longest; None if there is none.
    """
    found = [stem for stem in stems if name == stem or name.startswith(f"{stem}_")]
    return max(found, key=len, default=None)
