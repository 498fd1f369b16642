"""A backend of another project: found by its entry point, loaded, and its kernel runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fusewheel
import torch
from installations import Installation

# For the device that PyTorch leaves to others. There are no tensors of it here: the kernel is
# handed those of the CPU.
KERNEL = r"""
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

// Sevens, whatever is multiplied: nothing else gives them.
Tensor mul(const Tensor& a, const Tensor& b) {
  AtenTensorHandle out = nullptr;
  const int64_t size = a.size(0), stride = 1;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_float32(),
                                                  aoti_torch_device_type_cpu(), 0, &out));
  void* data = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(out, &data));
  for (int64_t i = 0; i < size; ++i) {
    static_cast<float*>(data)[i] = 7;
  }
  return Tensor(out);
}

STABLE_TORCH_LIBRARY_IMPL(fusewheel, PrivateUse1, library) { library.impl("mul", TORCH_BOX(&mul)); }

extern "C" const char* fusewheel_signatures() { return "mul(Tensor, Tensor) -> Tensor\n"; }
"""
MODULE = """
from pathlib import Path

device = "privateuseone"
library = Path(__file__).parent / "libforeign.so"
facts = {{"version": {version!r}, "torch": "2.10", "made by": "others"}}

def unavailable():
    return None
"""
USE = """
import torch, fusewheel
backend = next(b for b in fusewheel.backends() if b.name == "foreign")
print(backend.loaded, backend.device, backend.library.parent.name, backend.facts["made by"])
x = torch.arange(3.0)
key = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
print(torch.ops.fusewheel.mul.default.redispatch(key, x, x).tolist())
print(fusewheel.mul(x, x).tolist())
"""


def install(site: Installation) -> None:
    """Installs the package `foreign_kernels` with its library, as pip would."""
    package, info = site.folder / "foreign_kernels", site.folder / "foreign_kernels-3.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(MODULE.format(version=fusewheel.__version__))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-kernels\nVersion: 3.0\n")
    (info / "entry_points.txt").write_text("[fusewheel.backends]\nforeign = foreign_kernels\n")
    source, folder = site.folder / "foreign.cpp", Path(torch.__file__).parent
    source.write_text(KERNEL)
    options = ("-std=c++17", "-O0", "-fPIC", "-DTORCH_TARGET_VERSION=0x020a000000000000ULL")
    files = (str(source), "-o", str(package / "libforeign.so"))
    of_torch = (f"-I{folder / 'include'}", f"-L{folder / 'lib'}", "-ltorch_cpu")
    subprocess.run(("c++", "-shared", *options, *files, *of_torch), check=True)


def test_a_foreign_backend_is_found_loaded_and_run(tmp_path: Path):
    """Its folder is the first on the path: it is loaded before the backend with the schemas."""
    site = Installation(tmp_path / "site")
    install(site)
    done = site.run(USE)
    assert done.code == 0, done.errors
    assert done.output.splitlines() == [
        "True privateuseone foreign_kernels others",
        "[7.0, 7.0, 7.0]",
        "[0.0, 1.0, 4.0]",
    ]
