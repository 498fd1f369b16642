"""llama.cpp, through the package xllamacpp."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xllamacpp
from benchmarks.runtimes.request import Request, Times


def load(request: Request) -> LlamaRuntime:
    """A server within this process, with one slot a row."""
    rows = len(request.prompts)
    length = len(request.prompts[0]) + max(request.first, request.tokens + 1)
    params = xllamacpp.CommonParams()
    params.model.path = str(Path(request.folder) / "model.gguf")
    # A slot has its own part of the context, in multiples of 256.
    params.n_ctx = rows * -(-length // 256) * 256
    params.n_parallel = rows
    params.cpuparams.n_threads = request.threads
    params.cpuparams_batch.n_threads = request.threads
    # The time of the first tokens is a figure: no run before them.
    params.warmup = False
    return LlamaRuntime(xllamacpp.Server(params))


class LlamaRuntime:
    """A server, by whose own clock a single row is measured."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._told = False

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """Greedy."""
        # The tokens are in the answer to the first run only: they cost time.
        options = {} if self._told else {"logprobs": 1}
        self._told = True
        if len(prompts) == 1:
            answer = self._complete(prompts[0], tokens, **options)
            timings = answer["timings"]
            return Times(timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3, _ids(answer))
        if options:
            whole, answers = self._all(prompts, tokens, **options)
            return Times(0.0, whole, _ids(answers[0]))
        # Rows come and go by themselves: the time of the first tokens is that of a run of its own.
        prefill, _ = self._all(prompts, 1)
        whole, _ = self._all(prompts, tokens)
        return Times(prefill, max(0.0, whole - prefill), [])

    def _all(
        self, prompts: list[list[int]], tokens: int, **options: Any
    ) -> tuple[float, list[dict[str, Any]]]:
        start = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            asked = [pool.submit(self._complete, prompt, tokens, **options) for prompt in prompts]
            answers = [future.result() for future in asked]
        return time.perf_counter() - start, answers

    def _complete(self, prompt: list[int], tokens: int, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                # The most likely token needs no other sampler.
                "samplers": ["top_k"],
                "top_k": 1,
                "cache_prompt": False,
                "ignore_eos": True,
            }
            | options
        )
        if "error" in answer:
            raise RuntimeError(f"llama.cpp: {answer['error']}")
        return answer


def _ids(answer: dict[str, Any]) -> list[int]:
    logprobs = answer["choices"][0].get("logprobs") or {"content": []}
    return [int(token["id"]) for token in logprobs["content"]]
