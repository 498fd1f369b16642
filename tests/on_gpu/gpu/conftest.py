"""Every test that takes `operator` runs over all declared operators."""

from __future__ import annotations

import pytest
from fusewheel import ops
from on_gpu.required import require_gpu


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", ops.operators(), ids=lambda operator: operator.name)


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    require_gpu()
