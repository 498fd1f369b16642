"""A model of a few thousand parameters in place of the one that is downloaded."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any
from unittest import mock

import transformers
from fusewheel.quantization import LinearInt4
from shown_pages import shown
from tiny_gguf import small_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from torch._dynamo.utils import counters

WORDS = ["<unk>", "The", "sky", "is", "blue", "because"]


def around(names: dict[str, Any]) -> Iterator[None]:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    printed = io.StringIO()
    counters.clear()

    def load(_: str) -> Any:
        model = small_llama(layers=1, max_position_embeddings=128)
        model.generation_config.eos_token_id = None
        return model

    with (
        mock.patch.object(transformers.AutoTokenizer, "from_pretrained", lambda _: tokenizer),
        mock.patch.object(transformers.AutoModelForCausalLM, "from_pretrained", load),
        mock.patch("fusewheel.compiler.entry.dynamo.WORTHWHILE", 2.0),
        contextlib.redirect_stdout(printed),
    ):
        yield
    for text in shown("first-model"):
        assert text in printed.getvalue()
    assert counters["fusewheel"]["rms_norm"]
    assert isinstance(names["small"].model.layers[0].mlp.up_proj, LinearInt4)
