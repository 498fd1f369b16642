"""ONNX Runtime GenAI, on a model that its own builder made."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnxruntime_genai as genai
from benchmarks.runtimes import names
from benchmarks.runtimes.request import Request, Times


def load(request: Request) -> OnnxRuntime:
    """The model in the precision of its options."""
    precision = names.RUNTIMES[request.runtime].options["precision"]
    folder = Path(request.folder) / f"ort-{precision}"
    config = genai.Config(str(folder))
    threads = {"intra_op_num_threads": request.threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    return OnnxRuntime(genai.Model(config))


class OnnxRuntime:
    """A model and one generator for each run, as its documentation does it."""

    def __init__(self, model: genai.Model) -> None:
        self._model = model

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """Greedy; `min_length` keeps it from ending early."""
        length = len(prompts[0]) + tokens
        params = genai.GeneratorParams(self._model)
        params.set_search_options(
            batch_size=len(prompts), max_length=length, min_length=length, do_sample=False
        )
        start = time.perf_counter()
        generator = genai.Generator(self._model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(tokens - 1):
            generator.generate_next_token()
        end = time.perf_counter()
        found = generator.get_sequence(0)[len(prompts[0]) :].tolist()
        if len(found) != tokens:
            raise RuntimeError(f"{len(found)} tokens came, not {tokens}")
        return Times(first - start, end - first, found)
