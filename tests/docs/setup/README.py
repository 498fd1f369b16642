"""A language model of a few thousand parameters in place of the one that is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import transformers
from fusewheel.quantization import LinearInt4
from tiny_gguf import small_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from torch._dynamo.utils import counters

WORDS = ["<unk>", "The", "sky", "is", "blue", "because"]


def around(names: dict[str, Any]) -> Iterator[None]:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    model = small_llama(layers=1, max_position_embeddings=128).eval()
    counters.clear()
    with (
        mock.patch.object(transformers.AutoTokenizer, "from_pretrained", lambda _: tokenizer),
        mock.patch.object(transformers.AutoModelForCausalLM, "from_pretrained", lambda _: model),
    ):
        yield
    # What `generate` calls is compiled, and the backend has replaced something in it.
    assert counters["stats"]["unique_graphs"] and counters["fusewheel"]["rms_norm"]
    assert isinstance(model.model.layers[0].mlp.up_proj, LinearInt4)
