"""llama.cpp on the same file, through the package xllamacpp, in a process of its own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewheel.demo import memory
from fusewheel.demo.models.weights import BUNDLE_FILE
from fusewheel.demo.settings import LLAMA_CPP, Settings

PACKAGE = "xllamacpp"


def why_not(settings: Settings) -> str | None:
    """Why llama.cpp is left out of a run; None if it runs."""
    if not settings.llama_cpp:
        return f"{LLAMA_CPP} (not asked for)"
    if importlib.util.find_spec(PACKAGE) is None:
        return f'{LLAMA_CPP} (the package {PACKAGE} is not installed: pip install "{PACKAGE}")'
    if settings.layers is not None:
        return f"{LLAMA_CPP} (it can only run the whole model)"
    return None


@dataclass(frozen=True)
class LlamaSpec:
    """What the worker process has to load."""

    folder: str
    new_tokens: int
    threads: int

    def open(self) -> LlamaSession:
        """Load the model (called in the worker process)."""
        return LlamaSession(self)


class LlamaSession:
    """The phases of a `Session` that generate, with llama.cpp's own clock."""

    def __init__(self, spec: LlamaSpec) -> None:
        import torch
        import xllamacpp

        bundle = torch.load(Path(spec.folder) / BUNDLE_FILE, weights_only=True, mmap=True)
        self._prompt: list[int] = bundle["prompt"][0].tolist()
        self._new_tokens = spec.new_tokens
        self._answer: dict[str, Any] = {}
        self._tokens: list[int] = []
        params = xllamacpp.CommonParams()
        params.model.path = bundle["gguf"]
        params.n_ctx = len(self._prompt) + spec.new_tokens
        params.n_parallel = 1
        params.cpuparams.n_threads = spec.threads
        params.cpuparams_batch.n_threads = spec.threads
        params.warmup = True
        self._server = xllamacpp.Server(params)

    def facts(self) -> dict[str, Any]:
        """The instructions that this build of llama.cpp uses."""
        import xllamacpp

        return {
            "xllamacpp": importlib.metadata.version(PACKAGE),
            "llama_cpp": " ".join(xllamacpp.get_system_info().strip(" |").split()),
        }

    def first(self, phase: str) -> dict[str, Any]:
        """The first run of a phase, which gives the tokens for the later runs."""
        if phase == "prefill":
            # With the tokens in the answer, which timed runs do not ask for.
            choice = self._complete(logprobs=1)["choices"][0]
            self._tokens = [token["id"] for token in choice["logprobs"]["content"]]
        return self.run(phase) | {"graphs": 0, "graph_breaks": 0, "replacements": {}}

    def memory(self, phases: Sequence[str], long_s: float) -> dict[str, Any]:
        """Run the phases and report the peak resident memory meanwhile."""
        return memory.of_phases(self.run, phases, long_s)

    def run(self, phase: str) -> dict[str, Any]:
        """Run a phase once: its seconds and its tokens."""
        if phase == "prefill":
            # One request does prefill and decoding; the phase decode reads its part of the answer.
            self._answer = self._complete()
            milliseconds, tokens = self._answer["timings"]["prompt_ms"], self._tokens[:1]
        else:
            milliseconds, tokens = self._answer["timings"]["predicted_ms"], self._tokens
        return {"seconds": milliseconds / 1e3, "tokens": tokens}

    def _complete(self, **options: Any) -> dict[str, Any]:
        request = {
            "prompt": self._prompt,
            "n_predict": self._new_tokens,
            "temperature": 0,
            # The most likely token needs no other sampler.
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        answer: dict[str, Any] = self._server.handle_completions(request | options)
        if "error" in answer:
            raise RuntimeError(f"llama.cpp: {answer['error']}")
        return answer
