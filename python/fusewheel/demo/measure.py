"""Measures all modes: each mode has a worker process, and the modes take turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusewheel._core.process import Child, ChildError
from fusewheel.demo import isa
from fusewheel.demo.llama_cpp import LlamaSpec, why_not
from fusewheel.demo.models.session import SessionSpec
from fusewheel.demo.progress import Progress
from fusewheel.demo.settings import DTYPES, INT4, INT4_INT8, LLAMA_CPP, Settings
from fusewheel.demo.show.results import GENERATION, LORA, TRAINING, ModeResult, PhaseResult

# Compiling for training takes about 0.6 of the time of the two graphs of generation.
_TRAINING_ESTIMATE = 0.7
_TRAINING_MARGIN_S = 10.0
# A median needs at least so many repeats, even if the time limit is over.
_LEAST_REPEATS = 3


@dataclass
class Measurements:
    """The results of `measure`."""

    results: list[ModeResult] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def environment(settings: Settings, folder: Path, mode: str, dtype: str) -> dict[str, str]:
    """The environment of a worker process."""
    env = {
        **isa.limits(settings.isa),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        # The allocator keeps freed memory, because new pages cost more than a fused operator saves.
        # Older versions of glibc refuse large thresholds, hence also "no mappings at all".
        "MALLOC_MMAP_THRESHOLD_": str(2**40),
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "MALLOC_MMAP_MAX_": "0",
        # An empty cache, so that compile times are those of a first run.
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{dtype}-{mode}"),
    }
    if settings.threads is not None:
        env["OMP_NUM_THREADS"] = str(settings.threads)
    return env


class _Worker:
    """One mode and dtype: its process and its result so far."""

    def __init__(
        self, settings: Settings, folder: Path, dtype: str, mode: str, threads: int | None
    ) -> None:
        spec: SessionSpec | LlamaSpec
        if mode == LLAMA_CPP:
            spec = LlamaSpec(str(folder), settings.new_tokens, threads or 1)
        else:
            spec = SessionSpec(str(folder), mode, dtype, settings.new_tokens, settings.threads)
        self.result = ModeResult(dtype, mode)
        self.name = f"{dtype} {mode}"
        self.phases = {"generation": GENERATION, "training": _training_phases(dtype)}
        self._child = Child(spec.open, environment=environment(settings, folder, mode, dtype))

    @property
    def alive(self) -> bool:
        return self.result.error is None

    def call(self, what: str, method: str, *args: Any, waiting: Callable[[], None]) -> Any:
        """Call the session; the first failure is recorded and retires the worker."""
        try:
            return self._child.call(method, *args, waiting=waiting)
        except ChildError as error:
            self.result.error = f"{what}: {error}"
            self.result.error_details = error.details
            self._child.close()
            return None

    def record(self, phase: str, answer: dict[str, Any]) -> None:
        """Keep the tokens and the loss of a run."""
        if phase == "decode":
            self.result.tokens = self.result.tokens or answer["tokens"]
            self.result.tokens_repeat &= self.result.tokens == answer["tokens"]
        if phase in (*TRAINING, *LORA):
            self.result.losses.append(answer["loss"])

    def close(self) -> None:
        """End the process."""
        if self.alive:
            self._child.close()


def measure(settings: Settings, folder: Path, progress: Progress) -> Measurements:
    """Measure every mode in every dtype of the settings."""
    found = Measurements()
    for dtype in settings.dtypes:
        workers: list[_Worker] = []
        try:
            for format_, mode in _competitors(settings, dtype):
                # llama.cpp is given as many threads as torch took.
                threads = settings.threads or found.machine.get("threads")
                workers.append(_Worker(settings, folder, format_, mode, threads))
                _load(workers[-1], found, progress)
            _measure_part(settings, workers, "generation", progress)
            for worker in workers:
                _logits(worker, progress)
            if _time_left(settings, workers, progress):
                _measure_part(settings, workers, "training", progress)
            else:
                found.left_out.append(f"{dtype} training: no time left on this machine")
        finally:
            for worker in workers:
                worker.close()
        found.results += [worker.result for worker in workers]
    return found


def _competitors(settings: Settings, dtype: str) -> list[tuple[str, str]]:
    """The formats and modes that are measured in turns."""
    if dtype in DTYPES:
        return [(dtype, mode) for mode in settings.modes]
    found = [(format_, mode) for format_ in (INT4, INT4_INT8) for mode in settings.int4_modes]
    # It rounds activations to int8 as well.
    return found if why_not(settings) else [*found, (INT4_INT8, LLAMA_CPP)]


def _training_phases(dtype: str) -> tuple[str, ...]:
    """For 4-bit weights, which are frozen, adapters are trained, in one mode each."""
    return TRAINING if dtype in DTYPES else LORA if dtype == INT4 else ()


def _load(worker: _Worker, found: Measurements, progress: Progress) -> None:
    with progress.step(f"{worker.name}: load") as step:
        facts = worker.call("load", "facts", waiting=step.tick)
        step.note = f"FAILED, {worker.result.error}" if worker.result.error else ""
    found.machine = (facts or {}) | found.machine


def _measure_part(
    settings: Settings,
    workers: Sequence[_Worker],
    part: str,
    progress: Progress,
) -> None:
    """First runs, then the peak memory, then the timed repeats in turns."""
    workers = [worker for worker in workers if worker.phases[part]]
    for worker in workers:
        for phase in worker.phases[part]:
            _first(worker, phase, progress)
        _memory(worker, part, settings.long_s, progress)
    repeats = settings.train_repeats if part == "training" else settings.repeats
    limit_s = settings.time_limit_s or math.inf
    for repeat in range(repeats):
        out_of_time = repeat >= _LEAST_REPEATS and progress.elapsed_s > limit_s
        if out_of_time or not any(worker.alive for worker in workers):
            return
        # The order rotates, so that no mode always follows the same one.
        shift = repeat % len(workers)
        label = f"{workers[0].result.dtype}: time {part}, repeat {repeat + 1}/{repeats}"
        with progress.step(label) as step:
            for worker in [*workers[shift:], *workers[:shift]]:
                _timed(worker, part, step.tick)
            step.note = ", ".join(_latest(worker, part) for worker in workers)


def _first(worker: _Worker, phase: str, progress: Progress) -> None:
    if not worker.alive:
        return
    what = f"first {phase}" if worker.result.mode == "eager" else f"compile {phase}"
    with progress.step(f"{worker.name}: {what}") as step:
        answer = worker.call(what, "first", phase, waiting=step.tick)
        if answer is None:
            step.note = f"FAILED, {worker.result.error}"
            return
        worker.record(phase, answer)
        worker.result.phases[phase] = PhaseResult(
            first_s=answer["seconds"],
            graphs=answer["graphs"],
            graph_breaks=answer["graph_breaks"],
            replacements=answer["replacements"],
        )


def _memory(worker: _Worker, part: str, long_s: float, progress: Progress) -> None:
    if not worker.alive:
        return
    with progress.step(f"{worker.name}: peak memory of {part}") as step:
        phases = worker.phases[part]
        answer = worker.call(f"peak memory of {part}", "memory", phases, long_s, waiting=step.tick)
        if answer is None:
            step.note = f"FAILED, {worker.result.error}"
            return
        worker.result.peak_is_steady &= answer["steady"]
        worker.result.peak_bytes[part] = answer["peak_bytes"]
        step.note = f"{answer['peak_bytes'] / 2**20:.0f} MiB"
        for phase, seconds in answer["long"].items():
            worker.result.phases[phase].seconds.append(seconds)
            worker.result.phases[phase].once = True


def _logits(worker: _Worker, progress: Progress) -> None:
    """The error of the logits of 4-bit weights; compiled modes are compared by their tokens."""
    if not worker.alive or worker.result.mode != "eager" or worker.result.dtype in DTYPES:
        return
    with progress.step(f"{worker.name}: compare the logits with float64") as step:
        answer = worker.call("logits", "logits", waiting=step.tick)
        if answer is not None:
            worker.result.logits_error = answer["error"]
            worker.result.eager_logits_error = answer["eager_error"]


def _timed(worker: _Worker, part: str, waiting: Callable[[], None]) -> None:
    for phase in worker.phases[part]:
        if not worker.alive:
            return
        if worker.result.phases[phase].once:
            continue
        answer = worker.call(f"time {phase}", "run", phase, waiting=waiting)
        if answer is not None:
            worker.record(phase, answer)
            worker.result.phases[phase].seconds.append(answer["seconds"])


def _latest(worker: _Worker, part: str) -> str:
    name = worker.result.mode if worker.result.dtype in DTYPES else worker.name
    if not worker.alive:
        return f"{name} failed"
    seconds = sum(worker.result.phases[phase].seconds[-1] for phase in worker.phases[part])
    return f"{name} {seconds:.2f} s"


def _time_left(settings: Settings, workers: Sequence[_Worker], progress: Progress) -> bool:
    """Whether training is likely to end before the limit of a quick run."""
    if settings.time_limit_s is None:
        return True
    compiled = sum(phase.first_s for worker in workers for phase in worker.result.phases.values())
    estimate = compiled * _TRAINING_ESTIMATE + _TRAINING_MARGIN_S
    return progress.elapsed_s + estimate < settings.time_limit_s
