"""Memory that is a part of a file, such as the weights of a model that was just loaded."""

from __future__ import annotations

import ctypes
import mmap
import sys
from array import array
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_PAGES = Path("/proc/self/pagemap")

# The first loses what was written to; the second also drops the system's own copy of the file, so
# that the next process waits for the disk.
_DO_NOT_NEED, _PAGE_OUT = 4, 21  # MADV_DONTNEED and MADV_PAGEOUT of Linux

# The highest bits of a page: in memory, swapped out, part of a file. A page that was written to is
# no longer part of it.
_NOWHERE, _OF_FILE = 0b000, 0b101


class MappedFiles:
    """The parts of files that are mapped into this process now; none where it is not Linux."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        if sys.platform != "linux" or not _MAPS.exists():
            return
        for line in _MAPS.read_text().splitlines():
            # Addresses, permissions, offset, device, and the number of the file: 0 is no file.
            addresses, _, _, _, file, *_ = line.split(maxsplit=5)
            if file != "0":
                begin, end = (int(text, 16) for text in addresses.split("-"))
                self._ranges.append((begin, end))

    def leave(self, address: int, size: int) -> None:
        """Give the memory of a part of a file back: nobody needs it soon.

        Nothing is lost. Who reads it again reads the file, and what was written to stays.

        Args:
            address: where the part begins; memory that is of no file is left as it is.
            size: in bytes.
        """
        page = mmap.PAGESIZE
        begin, end = -(-address // page) * page, (address + size) // page * page
        if begin < end and any(low <= begin and end <= high for low, high in self._ranges):
            advise = ctypes.CDLL(None).madvise
            advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
            unwritten = _is_unwritten(begin // page, end // page)
            advise(begin, end - begin, _DO_NOT_NEED if unwritten else _PAGE_OUT)


def _is_unwritten(first: int, end: int) -> bool:
    """Whether all pages of a part of a file are as in the file; False if that is not known."""
    pages = array("Q")
    try:
        with _PAGES.open("rb", buffering=0) as file:
            file.seek(first * pages.itemsize)
            pages.frombytes(file.read((end - first) * pages.itemsize))
    except (OSError, ValueError):
        return False
    kinds = {page >> 61 for page in pages}
    return len(pages) == end - first and _OF_FILE in kinds and kinds <= {_NOWHERE, _OF_FILE}
