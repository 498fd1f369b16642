"""The Trainers of transformers and of TRL with `torch_compile_backend="fusewheel"`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
from tiny_gguf import small_llama
from torch._dynamo.utils import counters

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Trainer tells accelerate by environment variables and by a state of the process."""
    from accelerate.state import AcceleratorState

    for name in [n for n in os.environ if n.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        del os.environ[name]
    AcceleratorState._reset_state(True)
    torch.compiler.reset()


def common(folder: Path) -> dict[str, Any]:
    """Arguments of two steps on a CPU."""
    return {
        **{"output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 2},
        **{"use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True},
    }


def rows() -> list[dict[str, list[int]]]:
    """What the model is trained on."""
    torch.manual_seed(0)
    ids = torch.randint(2, 97, (4, 16)).tolist()
    return [{"input_ids": row, "labels": row} for row in ids]


def trained(folder: Path, **arguments: Any) -> Any:
    """The weights after two steps."""
    data = rows()
    settings = transformers.TrainingArguments(**common(folder), **arguments)
    model = small_llama(layers=1)
    trainer = transformers.Trainer(model, settings, train_dataset=data)
    trainer.train()
    return model.state_dict()


def trained_by_trl(folder: Path, **arguments: Any) -> Any:
    """The weights after two steps of its Trainer for supervised fine-tuning."""
    import datasets
    import trl

    data = datasets.Dataset.from_list(rows())
    settings = trl.SFTConfig(**common(folder), bf16=False, **arguments)
    model, tokenizer = (
        small_llama(layers=1),
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),
            **{"eos_token": "<e>", "pad_token": "<p>"},
        ),
    )
    trl.SFTTrainer(model, settings, train_dataset=data, processing_class=tokenizer).train()
    return model.state_dict()


@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
def test_a_trainer_compiles_with_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inductor would take a minute.
    monkeypatch.setattr("fusewheel.compiler.entry.dynamo.WORTHWHILE", 2.0)
    expected = trained(tmp_path)
    counters.clear()
    got = trained(tmp_path, torch_compile_backend="fusewheel")
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    found = counters["fusewheel"]
    assert found["rms_norm"] + found["add_rms_norm"] == 3
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, msg=name)


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")  # of TRL itself, and of what it imports
def test_a_trainer_of_trl_compiles_with_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setattr("fusewheel.compiler.entry.dynamo.WORTHWHILE", 2.0)
    expected = trained_by_trl(tmp_path)
    counters.clear()
    got = trained_by_trl(tmp_path, torch_compile_backend="fusewheel")
    found = counters["fusewheel"]
    assert found["rms_norm"] + found["add_rms_norm"] == 3
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, msg=name)


def test_other_names_are_refused_as_before() -> None:
    from accelerate.utils import DynamoBackend

    assert DynamoBackend("FUSEWHEEL") is DynamoBackend("FUSEWHEEL")
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR
    with pytest.raises(ValueError, match="'WHEEL' is not a valid DynamoBackend"):
        DynamoBackend("WHEEL")


def test_fusewheel_may_be_imported_last() -> None:
    code = (
        "import accelerate.utils as u, sys; assert 'fusewheel' not in sys.modules\n"
        "import fusewheel; print(u.TorchDynamoPlugin(backend='fusewheel').to_kwargs()['backend'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fusewheel\n"


def test_an_accelerate_that_is_different_does_not_stop_the_import(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import accelerate.utils.dataclasses

    monkeypatch.delattr(accelerate.utils.dataclasses, "DynamoBackend")
    fusewheel._register_backend()
    assert "before you make the Trainer" in caplog.text
