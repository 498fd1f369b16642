"""One model in one mode and dtype, inside its own process: the phases and how they are timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewheel._core.cache_argument import cache_argument
from fusewheel._torch.dynamo import counters
from fusewheel.demo import machine, memory
from fusewheel.demo.models.weights import BUNDLE_FILE
from fusewheel.demo.settings import DTYPES, INT4_INT8

_LEARNING_RATE = 1e-5
_LORA_LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class SessionSpec:
    """What a worker process has to load."""

    folder: str
    mode: str
    dtype: str
    new_tokens: int
    threads: int | None = None

    def open(self) -> Session:
        """Load the model (called in the worker process)."""
        return Session(self)


class Session:
    """Runs the phases of the demo; every method returns values that JSON can hold."""

    def __init__(self, spec: SessionSpec) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        bundle = torch.load(Path(spec.folder) / BUNDLE_FILE, weights_only=True, mmap=True)
        config = AutoConfig.for_model(**bundle["config"])
        dtype = getattr(torch, DTYPES.get(spec.dtype, "float32"))
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config, dtype=dtype)
        model.load_state_dict(bundle["state"])
        if spec.dtype not in DTYPES:
            from fusewheel.quantization import repack_gguf

            repacked = repack_gguf(model, bundle["gguf"], dynamic=spec.dtype == INT4_INT8)
            if repacked.kept:
                raise ValueError(f"not in the blocks of the file: {repacked.kept}")

        self._spec = spec
        self._model = model
        self._call = self._compiled()
        self._logits = bundle["logits"]
        self._prompt = bundle["prompt"].clone()
        self._training = bundle["training"].clone()
        self._first_token: Any = None
        self._optimizer: Any = None
        self._cache: Any = StaticCache(config, self._prompt.shape[1] + spec.new_tokens)
        self._cache.early_initialization(
            batch_size=1,
            num_heads=config.num_key_value_heads,
            head_dim=model.model.layers[0].self_attn.head_dim,
            dtype=dtype,
            device=model.device,
        )

    def _compiled(self) -> Callable[..., Any]:
        import torch

        if self._spec.mode == "eager":
            return self._model
        # Every phase has one shape, so nothing is compiled with dynamic sizes.
        return torch.compile(self._model, backend=self._spec.mode, dynamic=False)

    def facts(self) -> dict[str, Any]:
        """The machine and the versions as this process sees them."""
        return machine.facts()

    def first(self, phase: str) -> dict[str, Any]:
        """The first run of a phase, in which a compiling mode compiles."""
        graphs, breaks, replaced = _compiler_counts()
        result = self.run(phase)
        graphs_after, breaks_after, replaced_after = _compiler_counts()
        return result | {
            "graphs": graphs_after - graphs,
            "graph_breaks": breaks_after - breaks,
            "replacements": dict(replaced_after - replaced),
        }

    def memory(self, phases: Sequence[str], long_s: float) -> dict[str, Any]:
        """Run the phases and report the peak resident memory meanwhile; leaves a warm process."""
        found = memory.of_phases(self.run, phases, long_s)
        # Not all memory given back is in use again: what is timed next must not pay for the rest.
        for phase in phases:
            if phase not in found["long"]:
                self.run(phase)
        return found

    def run(self, phase: str) -> dict[str, Any]:
        """Run a phase once: its seconds, and the tokens or the loss it produced."""
        runner = {
            "prefill": self._prefill,
            "decode": self._decode,
            "train": self._train,
            "lora": self._lora,
        }[phase]
        return runner()

    def logits(self) -> dict[str, float]:
        """The largest errors of the prompt's logits against float64: of this model, and eager's."""
        import torch

        self._model.eval()
        with torch.no_grad():
            got = self._model(self._prompt, logits_to_keep=self._logits["exact"].shape[1]).logits
        error = (got.double() - self._logits["exact"]).abs().max().item()
        return {"error": error, "eager_error": self._logits["eager_error"]}

    def _prefill(self) -> dict[str, Any]:
        import torch

        length = self._prompt.shape[1]
        self._model.eval()
        self._set_cache_length(0)
        positions = torch.arange(length)[None]
        with torch.no_grad():
            start = time.perf_counter()
            self._first_token = self._next_token(self._prompt, positions)
            seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": self._first_token.tolist()}

    def _decode(self) -> dict[str, Any]:
        import torch

        length = self._prompt.shape[1]
        steps = self._spec.new_tokens - 1
        self._model.eval()
        self._set_cache_length(length)
        positions = [torch.tensor([[length + step]]) for step in range(steps)]
        token = self._first_token
        tokens = token.tolist()
        with torch.no_grad():
            start = time.perf_counter()
            for position in positions:
                token = self._next_token(token[:, None], position)
                tokens += token.tolist()
            seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": tokens}

    def _train(self) -> dict[str, Any]:
        if self._optimizer is None:
            self._start_training(self._model.parameters(), _LEARNING_RATE)
        return self._step()

    def _lora(self) -> dict[str, Any]:
        from fusewheel.demo.lora import add_adapters

        if self._optimizer is None:
            self._model.requires_grad_(False)
            parameters = add_adapters(self._model.model.layers)
            self._start_training(parameters, _LORA_LEARNING_RATE)
            # The layers are others now.
            self._call = self._compiled()
        return self._step()

    def _start_training(self, parameters: Iterable[Any], learning_rate: float) -> None:
        import torch

        self._model.train()
        self._cache = None
        self._optimizer = torch.optim.AdamW(parameters, lr=learning_rate, fused=True)

    def _step(self) -> dict[str, Any]:
        start = time.perf_counter()
        loss = self._call(input_ids=self._training, labels=self._training, use_cache=False).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": loss.item()}

    def _next_token(self, ids: Any, positions: Any) -> Any:
        """The most likely next token; only the last position's logits are computed."""
        output = self._call(
            input_ids=ids,
            position_ids=positions,
            **{cache_argument(): self._cache},
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].argmax(-1)

    def _set_cache_length(self, length: int) -> None:
        # In place: a compiled graph holds on to these tensors. What lies beyond is masked.
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(length)


def _compiler_counts() -> tuple[int, int, Counter[str]]:
    """Graphs compiled, graph breaks met, and rewrites made so far.

    The rewrites are there if the fusewheel backend counts them where Inductor counts its own.
    """
    found = counters()
    graphs, breaks = found["stats"]["unique_graphs"], sum(found["graph_break"].values())
    return graphs, breaks, Counter(found["fusewheel"])
