"""Inductor's cache on disk: a second process compiles what the first one did, warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import json, torch
from small_model import gradients_of, small_model
from torch._dynamo.utils import counters

layer, x = small_model().layers[0], torch.randn(2, 3, 16)
call = torch.compile(layer, backend="fusewheel")
expected, got = gradients_of(layer, layer, x), gradients_of(layer, call, x)
found = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss", "bypass")}
found["error"] = float((got - expected).norm() / expected.norm())
found["replaced"] = sum(counters["fusewheel"].values())
print(json.dumps(found))
"""


def _run(cache: Path, **environment: str) -> Any:
    own = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **own, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout)


def test_second_process(tmp_path: Path) -> None:
    cold, warm = _run(tmp_path), _run(tmp_path)
    assert cold["hit"] == 0 and cold["miss"] > 0
    assert warm["hit"] > 0 and warm["miss"] == 0
    for found in (cold, warm):
        assert found["bypass"] == 0 and found["error"] <= 1e-5
        assert found["replaced"] == 5
