"""Memory that is a part of a file, such as the weights of a model that was just loaded."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_PAGE_OUT = 21  # MADV_PAGEOUT of Linux


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
            advise(begin, end - begin, _PAGE_OUT)
