"""A tiny random model under the page's name, and a quantised one in a folder; the page shows what
its blocks print.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from shown_pages import shown, trainer
from stored_checkpoints import write
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING


def around(names: dict[str, Any]) -> Iterator[None]:
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    folder = Path("model")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    names["name"] = str(folder)
    names["dataset"] = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 4
    names["checkpoint"] = str(folder.with_name("checkpoint"))
    write(Path(names["checkpoint"]), "gptq")
    quantizers = dict(AUTO_QUANTIZER_MAPPING)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), trainer():
        yield
    # Other tests load models as transformers does.
    AUTO_QUANTIZER_MAPPING.update(quantizers)
    # The Trainer prints its figures as a dictionary.
    lines = printed.getvalue().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("{")) == "".join(
        shown("transformers")
    )
    assert names["result"].global_step == 2
    assert names["model"].config._attn_implementation == "fusewheel"
    assert torch.isfinite(names["loss"])
    assert names["adapted"].peft_config
