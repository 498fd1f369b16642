"""Every test that takes `operator` runs over all declared operators; `dtype` over all dtypes."""

from __future__ import annotations

import pytest
import torch
from fusewheel import ops
from oracle import DTYPES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "operator" in metafunc.fixturenames:
        declared = ops.operators()
        metafunc.parametrize("operator", declared, ids=[o.name for o in declared])
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES, ids=[str(d).removeprefix("torch.") for d in DTYPES])


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()
