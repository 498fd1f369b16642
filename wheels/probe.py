"""Calls an operator through torch's C interface, rightly and wrongly, without torch's Python.

python probe.py FOLDER_OF_TORCHS_LIBRARIES FOLDER_OF_FUSEWHEEL_CPU
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys


def main(libraries: str, package: str) -> None:
    """Prints the system's glibc if the operator computes, and says no to shapes that do not fit."""
    torch = ctypes.CDLL(f"{libraries}/libtorch_cpu.so", ctypes.RTLD_GLOBAL)
    kernels = ctypes.CDLL(f"{package}/libfusewheel_cpu.so")
    kernels.fusewheel_schema_version.restype = ctypes.c_char_p

    def tensor(*values: float) -> int:
        size, stride, handle = ctypes.c_int64(len(values)), ctypes.c_int64(1), ctypes.c_void_p()
        dtype, device = torch.aoti_torch_dtype_float32(), torch.aoti_torch_device_type_cpu()
        sizes = ctypes.byref(size), ctypes.byref(stride)
        assert not torch.aoti_torch_empty_strided(
            *(ctypes.c_int64(1), *sizes, dtype, device, 0, ctypes.byref(handle))
        )
        for i, value in enumerate(values):
            data(handle)[i] = value
        return handle.value or 0

    def data(handle: ctypes.c_void_p) -> ctypes._Pointer[ctypes.c_float]:
        pointer = ctypes.POINTER(ctypes.c_float)()
        assert not torch.aoti_torch_get_data_ptr(handle, ctypes.byref(pointer))
        return pointer

    def muladd(a: int, b: int, c: float) -> ctypes.c_void_p | None:
        (bits,) = struct.unpack("Q", struct.pack("d", c))
        stack = (ctypes.c_uint64 * 3)(a, b, bits)
        failed = torch.aoti_torch_call_dispatcher(b"fusewheel::muladd", b"", stack)
        return None if failed else ctypes.c_void_p(stack[0])

    result = muladd(tensor(1, 2, 3), tensor(4, 5, 6), 0.5)
    assert result is not None and data(result)[:3] == [4.5, 10.5, 18.5]
    # Thrown in the kernel library, caught in torch's.
    assert muladd(tensor(1, 2, 3), tensor(4, 5), 0.5) is None
    assert muladd(tensor(2), tensor(3), 1.0) is not None
    version, system = kernels.fusewheel_schema_version().decode(), os.confstr("CS_GNU_LIBC_VERSION")
    print(f"fusewheel {version} computes, throws and is caught on {system}")


if __name__ == "__main__":
    main(*sys.argv[1:])
