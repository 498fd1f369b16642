"""One language model in one mode, in a process of its own: three cases and what they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fusewheel
import torch
from benchmarks.eager_operators import calling_operators
from fusewheel._core import memory
from fusewheel._core.cache_argument import cache_argument
from fusewheel.demo.models.weights import BUNDLE_FILE

EAGER, INDUCTOR, FUSEWHEEL, OVER_INDUCTOR = "eager", "inductor", "fusewheel", "over inductor"
OPERATORS, UNCOMPILED = "operators", "inner none"
INT4, INT4_INT8 = "int4", "int4-int8"
CASES = ("prefill", "decode", "train")


@dataclass(frozen=True)
class Mode:
    """A way to run a model.

    Attributes:
        compiling: what `torch.compile` is given; None for eager.
        quantizing: what `fusewheel.quantize_` is given; None leaves the weights as they are.
        calling: whether the model itself calls fused operators; trained only.
    """

    compiling: Mapping[str, Any] | None
    quantizing: Mapping[str, Any] | None = None
    calling: bool = False

    def takes(self, case: str, dtype: str) -> bool:
        """Whether it has this case: quantised weights stand beside those in float32, untrained."""
        if self.calling:
            return case == "train"
        return self.quantizing is None or (case != "train" and dtype == "float32")


MODES = {
    EAGER: Mode(None),
    INDUCTOR: Mode({"backend": "inductor"}),
    FUSEWHEEL: Mode({"backend": "fusewheel"}),
    OVER_INDUCTOR: Mode({"backend": "fusewheel", "options": {"inner": "inductor"}}),
    UNCOMPILED: Mode({"backend": "fusewheel", "options": {"inner": "none"}}),
    OPERATORS: Mode(None, calling=True),
    INT4: Mode({"backend": "fusewheel"}, {"kind": "int4"}),
    INT4_INT8: Mode({"backend": "fusewheel"}, {"kind": "int4", "dynamic": True}),
}

_LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Sizes:
    """Tokens of the prompt, steps of decoding in one timed run, and the batch of training."""

    prompt: int = 256
    steps: int = 8
    batch: tuple[int, int] = (4, 128)


@dataclass(frozen=True)
class Spec:
    """What a worker process has to load.

    Attributes:
        mode: a key of `MODES`.
        dtype: of weights and activations.
        threads: PyTorch's.
        bundle: the folder with a configuration and weights; None makes random ones of `config`.
        config: what transformers needs to make a model.
        sizes: of the cases.
    """

    mode: str
    dtype: str
    threads: int
    bundle: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    sizes: Sizes = Sizes()

    def open(self) -> Worker:
        """Load the model (called in the worker process)."""
        return Worker(self)


class Worker:
    """The model, its compiled form and the memory of each case."""

    def __init__(self, spec: Spec) -> None:
        torch.set_num_threads(spec.threads)
        self._sizes, self._mode = spec.sizes, MODES[spec.mode]
        self._model = _load(spec)
        if self._mode.quantizing is not None:
            fusewheel.quantize_(self._model, **self._mode.quantizing)
        self._call = self._compiled(self._model)
        if self._mode.calling:
            self._step = calling_operators(self._model)
        else:
            self._step = self._compiled(self._loss)
        # No state of its own: what is kept beside weights and gradients is the model's.
        self._optimizer = torch.optim.SGD(self._model.parameters(), _LEARNING_RATE)
        generator = torch.Generator().manual_seed(0)
        vocabulary = self._model.config.vocab_size

        def random(*shape: int) -> Any:
            return torch.randint(vocabulary, shape, generator=generator)

        self._prompt, self._batch = random(1, spec.sizes.prompt), random(*spec.sizes.batch)
        self._cache = self._new_cache(getattr(torch, spec.dtype))

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._mode.compiling is None:
            return function
        # Every case has one shape, so nothing is compiled with dynamic sizes.
        return torch.compile(function, dynamic=False, **self._mode.compiling)

    def _loss(self, ids: Any) -> Any:
        return self._model(ids, labels=ids, use_cache=False).loss

    def _new_cache(self, dtype: torch.dtype) -> Any:
        from transformers import StaticCache

        config = self._model.config
        cache = StaticCache(config, self._sizes.prompt + self._sizes.steps)
        cache.early_initialization(
            batch_size=1,
            num_heads=config.num_key_value_heads,
            head_dim=self._model.model.layers[0].self_attn.head_dim,
            dtype=dtype,
            device=self._model.device,
        )
        return cache

    def run(self, case: str) -> float:
        """Seconds of one run of a case; of all steps of decoding."""
        runner = {"prefill": self._prefill, "decode": self._decode, "train": self._train}[case]
        start = time.perf_counter()
        runner()
        return time.perf_counter() - start

    def measured(self, case: str) -> tuple[float, int]:
        """Seconds of one run, and the resident memory it reaches; 0 where that is not told."""
        steady = memory.reset_peak()
        seconds = self.run(case)
        return seconds, memory.peak_bytes() if steady else 0

    @torch.no_grad()
    def _prefill(self) -> Any:
        self._model.eval()
        self._set_cache_length(0)
        return self._logits(self._prompt, torch.arange(self._sizes.prompt)[None])

    @torch.no_grad()
    def _decode(self) -> Any:
        self._model.eval()
        self._set_cache_length(self._sizes.prompt)
        # Not a slice of the prompt: its strides are not those of later tokens, and compile anew.
        token = torch.tensor([[self._prompt[0, -1].item()]])
        for step in range(self._sizes.steps):
            logits = self._logits(token, torch.tensor([[self._sizes.prompt + step]]))
            token = logits[:, -1:].argmax(-1)
        return token

    def _train(self) -> float:
        self._model.train()
        loss = self._step(self._batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def _logits(self, ids: Any, positions: Any) -> Any:
        return self._call(
            input_ids=ids,
            position_ids=positions,
            **{cache_argument(): self._cache},
            use_cache=True,
            logits_to_keep=1,
        ).logits

    def _set_cache_length(self, length: int) -> None:
        # In place: a compiled graph holds on to these tensors. What lies beyond is masked.
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(length)


def _load(spec: Spec) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    bundle: dict[str, Any] = {"config": spec.config, "state": None}
    if spec.bundle is not None:
        bundle = torch.load(Path(spec.bundle) / BUNDLE_FILE, weights_only=True, mmap=True)
    torch.manual_seed(0)
    config = AutoConfig.for_model(**bundle["config"])
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=getattr(torch, spec.dtype))
    if bundle["state"] is not None:
        model.load_state_dict(bundle["state"])
    return model
