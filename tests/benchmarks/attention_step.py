"""A training step in bfloat16 with fusewheel's attention or PyTorch's, all else by fusewheel.

PYTHONPATH=tests python -m benchmarks.attention_step --isa avx2
PYTHONPATH=tests python -m benchmarks.attention_step --isa avx2 --attention pytorch
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import fusewheel
import torch
from benchmarks import machine, timing
from fusewheel.demo.isa import LEVELS

# SmolLM2-135M. The numbers are random: only times are compared.
_SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attention", choices=("fusewheel", "pytorch"), default="fusewheel")
    parser.add_argument("--isa", choices=list(LEVELS))
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=2, help="the first one compiles")
    return parser.parse_args(arguments)


def seconds_of_steps(options: argparse.Namespace) -> list[float]:
    """The time of each step, the loss and its gradients."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    if options.attention == "pytorch":
        fusewheel.compiler.disable("attention")
    config = LlamaConfig(**_SHAPE, num_hidden_layers=options.layers)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    tokens = torch.randint(0, config.vocab_size, (options.batch, options.tokens))

    def loss(given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=given, labels=given, use_cache=False).loss
        return found

    compiled = torch.compile(loss, backend="fusewheel", options={"inner": "none"})
    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        compiled(tokens).backward()
        model.zero_grad()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    options = parse()
    timing.require(machine.environment(options.isa))
    print(machine.heading(machine.describe([options.threads], options.isa)))
    print(options.attention, *(f"{step:.1f} s" for step in seconds_of_steps(options)))


if __name__ == "__main__":
    main()
