"""The table of fine-tuning: the modes on a tiny model, the rest without the clock."""

from __future__ import annotations

import pytest
import torch
from benchmarks import qlora
from benchmarks.goals import BNB
from benchmarks.qlora_models import COMPILED, FUSEWHEEL, SHAPE, adapted

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

TINY = SHAPE | {
    **{"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1},
}


def test_a_step_lowers_the_loss_of_adapters():
    (run,) = qlora.competitors("step", TINY, torch.float32, [FUSEWHEEL]).values()
    first, second = run(), run()
    assert second < first
    trained = [n for n, p in adapted(FUSEWHEEL, TINY, torch.float32).named_parameters()
               if p.requires_grad]  # fmt: skip
    assert len(trained) == 2 * 7 and all("lora" in name for name in trained)


def test_a_token():
    (run,) = qlora.competitors("token", TINY, torch.bfloat16, [FUSEWHEEL]).values()
    assert run().shape == (1, 1, 64)


@pytest.mark.parametrize(("capability", "goal"), [("AVX512", 2.0), ("AVX2", 5.0)])
def test_what_is_judged(monkeypatch, capability, goal):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    times = {"bitsandbytes": 3.0, FUSEWHEEL: 1.2, COMPILED: 2.0}
    cells = {cell.name: cell for cell in qlora.judge("step", "float32", times)}
    assert cells["bitsandbytes"].goals == {}
    assert cells[FUSEWHEEL].goals == {f"{goal:g}x {BNB}": goal <= 2.5}
    assert cells[COMPILED].goals == {f"{goal:g}x {BNB}": False}
    texts = [column.text(cells[COMPILED]) for column in qlora.TABLE.columns]
    assert texts[3:] == [COMPILED, "2000.0", "1.50", f"{goal:g}x {BNB} missed"]
    assert qlora.panels(list(cells.values()))["step"]["float32"][f"compiled against {BNB}"] == 1.5


def test_without_the_rival_its_ratio_is_missing():
    (cell,) = qlora.judge("token", "float32", {FUSEWHEEL: 1.0})
    assert cell.goals == {} and qlora.TABLE.columns[5].text(cell) == "-"
