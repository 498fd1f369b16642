"""OpenVINO GenAI, on the file of llama.cpp."""

from __future__ import annotations

from pathlib import Path

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
    """A pipeline, measured by its own clock."""

    def __init__(self, pipeline: openvino_genai.LLMPipeline) -> None:
        self._pipeline = pipeline

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """Greedy."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        results = self._pipeline.generate(inputs, config)
        metrics = results.perf_metrics
        found = [int(token) for token in results.tokens[0]]
        if len(found) != tokens:
            raise RuntimeError(f"{len(found)} tokens came, not {tokens}")
        first, each = metrics.get_ttft().mean / 1e3, metrics.get_tpot().mean / 1e3
        return Times(first, each * (tokens - 1), found)
