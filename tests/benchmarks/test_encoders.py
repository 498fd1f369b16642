"""The table of encoders: every mode on a tiny one, the rest without the clock."""

from __future__ import annotations

import pytest
import torch
from benchmarks import encoders
from benchmarks.encoder_models import SHAPES
from benchmarks.goals import EAGER, INDUCTOR, ORT_INT8
from nightly import NIGHTLY

TINY = SHAPES["MiniLM-L6"] | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}


@pytest.fixture(autouse=True)
def _forget():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@NIGHTLY
def test_every_mode_gives_the_values(monkeypatch):
    # How fast Inductor is, is for the clock to say.
    plain = encoders.compiled
    monkeypatch.setattr(
        encoders, "compiled", lambda model, name: plain(model, name.replace("inductor", "eager"))
    )
    ids = torch.randint(encoders.VOCABULARY, (2, 5))
    calls = encoders.competitors(TINY, (ids, torch.ones_like(ids)), 1, encoders.MODES)
    assert set(calls) >= {EAGER, INDUCTOR, encoders.FUSEWHEEL, encoders.BF16, encoders.INT8}
    want = calls[EAGER]()
    for mode, call in calls.items():
        least = {encoders.BF16: 5e-2, encoders.INT8: 5e-2, ORT_INT8: 0.2}.get(mode, 1e-4)
        off = (call().float() - want).norm() / want.norm()
        assert off < least, mode
        assert off > 0 or mode in (EAGER, INDUCTOR), mode


def test_what_is_judged():
    times = {EAGER: 3.0, INDUCTOR: 2.0, "fusewheel": 2.5, "int8": 1.0, ORT_INT8: 1.2}
    cells = {cell.name: cell for cell in encoders.judge("MiniLM-L6", times)}
    assert cells["fusewheel"].goals == {"1x eager": True, "1x inductor": False}
    assert cells["int8"].goals == {"1.2x ort int8": True}
    assert [column.text(cells["int8"]) for column in encoders.TABLE.columns][2:] == [
        "int8", "1000.0", "3.00", "2.00", "1.20", "1.2x ort int8 met",
    ]  # fmt: skip
    assert [column.text(cells[EAGER]) for column in encoders.TABLE.columns][-2:] == ["0.40", ""]


def test_without_the_rival_its_ratio_is_missing():
    (cell,) = encoders.judge("MiniLM-L6", {"int8": 1.0})
    assert cell.goals == {} and cell.baselines == {}
    assert [column.text(cell) for column in encoders.TABLE.columns][4:] == ["-", "-", "-", ""]
