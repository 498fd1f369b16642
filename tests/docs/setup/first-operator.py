"""The page shows what its blocks print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shown_pages import prints_what_it_shows


def around(names: dict[str, Any]) -> Iterator[None]:
    yield from prints_what_it_shows("first-operator")
