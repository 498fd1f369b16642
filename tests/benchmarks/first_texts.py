"""The first texts of a process: `python -m benchmarks.first_texts FOLDER MODE`, in `tests/`.

FOLDER holds a model of transformers. Prints the seconds of four texts: two lengths, twice each.
With `--prompt TOKENS` there are two more, of a third length. With `--adapters RANK` peft puts
adapters of this rank on all linear layers. `--static` asks for a static cache, `--beams NUMBER` for
beam search. In the mode "compiled" it also prints how long the check for changes before each call
takes, without adapters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import fusewheel
import torch
from transformers import AutoModelForCausalLM

MODES = ("eager", "dynamo", "compiled", "frozen")
# Tokens of the prompt, and new ones.
LENGTHS = ((5, 32), (30, 48))
NEW = 40  # after the prompt of `--prompt`
# Numbers that are read between two checks, so that these find nothing in the processor's caches.
LARGE = 20_000_000


def texts(
    model: Any, mode: str, lengths: Sequence[tuple[int, int]] = LENGTHS, **more: Any
) -> list[float]:
    """The seconds that each text takes, one length after the other, and each twice.

    Args:
        model: the model.
        mode: one of `MODES`.
        lengths: the tokens of each prompt, and the new ones.
        **more: what `generate` is told beside.
    """
    if mode == "dynamo":
        fusewheel.compiler.disable("capture")
    if mode == "frozen":
        fusewheel.freeze(model)
    elif mode != "eager":
        model.compile(backend="fusewheel")
    twice = [length for length in lengths for _ in range(2)]
    return [_seconds(lambda p=prompt, n=new: _text(model, p, n, more)) for prompt, new in twice]


def _text(model: Any, prompt: int, new: int, more: dict[str, Any]) -> None:
    ids = torch.randint(model.config.vocab_size, (1, prompt))
    numbers = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    model.generate(ids, attention_mask=torch.ones_like(ids), **numbers, **more)


def adapted(model: Any, rank: int) -> Any:
    """The model with peft's adapters on its linear layers, which add no zeros."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, config).eval()


def check(model: Any) -> tuple[float, float]:
    """The seconds of a check for changes: one after another, and behind other memory."""
    is_same, large = model._compiled_call_impl._watched.is_same, torch.zeros(LARGE)
    warm = [_seconds(is_same) for _ in range(100)]
    cold = []
    for _ in range(20):
        large.add_(1)
        cold.append(_seconds(is_same))
    return median(warm), median(cold)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, help=f"tokens of a third prompt, with {NEW} new ones")
    parser.add_argument("--adapters", type=int, metavar="RANK", help="put adapters of peft on it")
    parser.add_argument("--static", action="store_true", help="static caches")
    parser.add_argument("--beams", type=int, help="beam search with so many beams")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    if options.adapters:
        model = adapted(model, options.adapters)
    lengths = (*LENGTHS, (options.prompt, NEW)) if options.prompt else LENGTHS
    more: dict[str, Any] = {"cache_implementation": "static"} if options.static else {}
    if options.beams:
        more["num_beams"] = options.beams
    found = texts(model, options.mode, lengths, **more)
    print(options.mode, *(f"{seconds:.1f}" for seconds in found))
    if options.mode == "compiled" and not options.adapters:
        print("check, ms:", *(f"{1e3 * seconds:.1f}" for seconds in check(model)))


if __name__ == "__main__":
    main()
