"""Functions of PyTorch that Python code reaches under a private name."""

from __future__ import annotations

from typing import Any

from fusewheel._torch.find import find


def nn(name: str) -> Any:
    """A function of `torch.nn.functional` as C++ has it; None where this torch has none."""
    return find(f"torch._C._nn.{name}", "recognise its calls in captured graphs", None)


# The product of sorted rows, which `torch.nn.functional.grouped_mm` calls.
grouped_mm = find("torch._grouped_mm", "recognise its calls in captured graphs", None)
# Counts the uses of a feature, once for a process; Dynamo captures it.
note_use = find("torch._C._log_api_usage_once", "recognise its calls in captured graphs", None)
# C++ code that is built against this torch must be built as it was.
cxx11_abi: bool = find("torch._C._GLIBCXX_USE_CXX11_ABI", "build C++ programs", True)

# Values in nested lists, tuples and dictionaries.
tree_flatten: Any = find("torch.utils._pytree.tree_flatten", "read nested values")
tree_leaves: Any = find("torch.utils._pytree.tree_leaves", "read nested values")
tree_map: Any = find("torch.utils._pytree.tree_map", "change nested values")
tree_map_only: Any = find("torch.utils._pytree.tree_map_only", "change nested values")
tree_unflatten: Any = find("torch.utils._pytree.tree_unflatten", "put nested values together")
