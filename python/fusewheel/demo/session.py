"""One model in one mode and dtype, inside its own process: the phases and how they are timed."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewheel.demo import memory
from fusewheel.demo.settings import DTYPES
from fusewheel.demo.weights import BUNDLE_FILE

_LEARNING_RATE = 1e-5


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
        dtype = getattr(torch, DTYPES[spec.dtype])
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config, dtype=dtype)
        model.load_state_dict(bundle["state"])

        self._spec = spec
        self._model = model
        # Every phase has one shape, so nothing is compiled with dynamic sizes.
        self._call: Callable[..., Any] = (
            model
            if spec.mode == "eager"
            else torch.compile(model, backend=spec.mode, dynamic=False)
        )
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

    def facts(self) -> dict[str, Any]:
        """The machine and the versions as this process sees them."""
        import torch
        import transformers

        return {
            "cpu": _cpu_name(),
            "capability": _capability(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        }

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

    def memory(self, phases: Sequence[str]) -> dict[str, Any]:
        """Run the phases and report the peak resident memory meanwhile; leaves a warm process."""
        steady = memory.reset_peak()
        for phase in phases:
            self.run(phase)
        peak = memory.peak_bytes()
        # Not all memory given back is in use again: what is timed next must not pay for the rest.
        for phase in phases:
            self.run(phase)
        return {"peak_bytes": peak, "steady": steady}

    def run(self, phase: str) -> dict[str, Any]:
        """Run a phase once: its seconds, and the tokens or the loss it produced."""
        runner = {"prefill": self._prefill, "decode": self._decode, "train": self._train}[phase]
        return runner()

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
        import torch

        self._model.train()
        if self._optimizer is None:
            self._cache = None
            self._optimizer = torch.optim.AdamW(
                self._model.parameters(), lr=_LEARNING_RATE, fused=True
            )
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
            past_key_values=self._cache,
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
    from torch._dynamo.utils import counters

    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return graphs, breaks, Counter(counters["fusewheel"])


def _capability() -> str:
    """The vector instructions PyTorch uses, and what makes bf16 matrices fast if it is there."""
    import torch

    # Newer than the oldest torch we support.
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    extras = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}
    names = [name for key, name in extras.items() if found.get(key)]
    return ", ".join([torch.backends.cpu.get_cpu_capability(), *names])


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
