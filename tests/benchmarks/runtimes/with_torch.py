"""PyTorch: `model.generate` as a user calls it, eager or compiled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.runtimes import names
from benchmarks.runtimes.request import Request, Times

# Ends a text, and no vocabulary has it. With `min_new_tokens` transformers would go through all
# logits for each token, in Python: few users ask for that, and it costs the other runtimes nothing.
_NEVER = 2**31 - 1


def load(request: Request) -> TorchRuntime:
    """The model in the form that its options ask for."""
    torch.set_num_threads(request.threads)
    return TorchRuntime(Path(request.folder), names.RUNTIMES[request.runtime].options)


class TorchRuntime:
    """A model of transformers."""

    def __init__(self, folder: Path, options: Any) -> None:
        self._model = _model(folder, options).eval()
        if options["backend"] == "fusewheel":
            import fusewheel

            fusewheel.freeze(self._model)
        elif options["backend"]:
            self._model.compile(backend=options["backend"])

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """Greedy."""
        ids = torch.tensor(prompts)
        clock = _Clock()
        start = time.perf_counter()
        found = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=_NEVER,
            pad_token_id=0,
            stopping_criteria=[clock],
        )
        stamps = clock.stamps
        return Times(stamps[0] - start, stamps[-1] - stamps[0], found[0, ids.shape[1] :].tolist())


class _Clock:
    """Is asked after each token whether to stop; never stops."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.stamps.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool)


def _model(folder: Path, options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    if options.get("gguf"):
        import fusewheel

        return fusewheel.load_gguf(folder / "model.gguf")[0]
    dtype = getattr(torch, options.get("dtype", "float32"))
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=dtype)
    if "quantize" in options:
        import fusewheel

        fusewheel.quantize_(model, **options["quantize"])
    if options.get("torchao"):
        # Its int4 for CPUs, which none of its stable formats is.
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import quantize_

        quantize_(model, PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False))
    return model
