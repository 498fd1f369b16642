"""The reader's own operator, and the module with its samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch


def around(names: dict[str, Any]) -> Iterator[None]:
    library = torch.library.Library("my_package", "DEF")
    library.define("my_op(Tensor x) -> Tensor")
    library.impl("my_op", lambda x: x.sin(), "CompositeImplicitAutograd")
    module = ModuleType("my_module")
    vars(module)["samples"] = lambda: [(torch.randn(3, 4),)]
    sys.modules["my_module"] = module
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the page asks for, in a process that has computed
    try:
        yield
        assert len(names["report"].outcomes) == 3
        assert callable(names["test_my_op"])
    finally:
        torch.set_num_threads(threads)
        del sys.modules["my_module"]
