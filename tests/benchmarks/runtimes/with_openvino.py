"""OpenVINO GenAI, on the file of llama.cpp."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from benchmarks.runtimes.request import Request, Times


def load(request: Request) -> OpenVinoRuntime:
    """The model on the CPU."""
    scheduler = openvino_genai.SchedulerConfig()
    # Every run has the same prompts, which it would read once only.
    scheduler.enable_prefix_caching = False
    return OpenVinoRuntime(
        openvino_genai.LLMPipeline(
            str(Path(request.folder) / "model.gguf"),
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=request.threads,
        )
    )


class OpenVinoRuntime:
    """A pipeline. Its own clock divides what it measures by the number of prompts."""

    def __init__(self, pipeline: openvino_genai.LLMPipeline) -> None:
        self._pipeline = pipeline
        self._has_run = False

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """Greedy. Later runs read the prompts twice: once for their first tokens alone."""
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        # Of the first run only its end counts.
        first = self._timed(inputs, 1)[0] if self._has_run else 0.0
        self._has_run = True
        whole, results = self._timed(inputs, tokens)
        counts = {len(found) for found in results.tokens}
        if counts != {tokens} or len(results.tokens) != len(prompts):
            raise RuntimeError(f"{sorted(counts)} tokens came, not {tokens} of each prompt")
        return Times(first, whole - first, [int(token) for token in results.tokens[0]])

    def _timed(self, inputs: openvino_genai.TokenizedInputs, tokens: int) -> tuple[float, Any]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        start = time.perf_counter()
        results = self._pipeline.generate(inputs, config)
        return time.perf_counter() - start, results
