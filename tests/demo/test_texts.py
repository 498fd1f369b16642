"""The real prompt with the real tokenizer."""

from __future__ import annotations

from fusewheel.demo.models import weights
from fusewheel.demo.models.text import PROMPT, TRAINING
from fusewheel.demo.settings import BATCH, SEQUENCE


def test_texts_have_the_lengths_the_demo_speaks_of(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    gguf = weights.find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_dict=True
    )
    assert len(chat["input_ids"]) == 256
    assert len(tokenizer(TRAINING)["input_ids"]) >= BATCH * SEQUENCE
