"""The models, and their files in the formats of all runtimes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fusewheel._core.process import ChildError, run_program

# Without weights of their own: random ones. The vocabulary is that of SmolLM2, whose tokenizer
# goes into their files.
_LLAMA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# By name; None is for real weights. The tiny one shows whether every runtime works here.
TINY = "tiny"
MODELS: dict[str, dict[str, Any] | None] = {
    "smollm2": None,
    "llama-0.3b": {
        **_LLAMA,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    },
    "llama-1.1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
    },
    TINY: {
        **_LLAMA,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
TITLES = {
    "smollm2": "SmolLM2-135M",
    "llama-0.3b": "Llama-0.3B",
    "llama-1.1b": "Llama-1.1B",
    TINY: TINY,
}

_SECONDS = 1800.0


def prepare(name: str, folder: Path) -> list[int]:
    """Writes the model in the formats of transformers and llama.cpp; the tokens of a text.

    A process of its own does it, whose memory is given back.
    """
    command = [sys.executable, "-m", "benchmarks.runtimes.convert", name, folder]
    try:
        run_program(command, _SECONDS)
    except ChildError as error:
        raise SystemExit(f"{name}: {error.explanation}") from None
    found: list[int] = json.loads((folder / "prompt.json").read_text())
    return found


def build(precision: str, folder: Path) -> str:
    """Writes the model in the format of ONNX Runtime GenAI; why not, empty if it did."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    command += ["-i", str(folder / "hf"), "-o", str(folder / f"ort-{precision}")]
    command += ["-p", precision, "-e", "cpu", "-c", str(folder / "cache")]
    try:
        run_program(command, _SECONDS)
    except ChildError as error:
        return f"the builder of ONNX Runtime GenAI failed: {error.explanation}"
    return ""
