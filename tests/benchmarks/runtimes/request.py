"""What a process is asked to measure, and what it answers. Neither needs PyTorch to be read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """One runtime, one model, one batch.

    Attributes:
        runtime: a key of `RUNTIMES`.
        folder: of the model: configuration, weights and tokenizer in every format.
        prompts: token ids, one list a row; all rows have one length.
        tokens: new tokens of a timed run, after the first one.
        first: new tokens of the first run, whose time counts from `started`.
        repeats: timed runs.
        seconds: no further run is timed once they took so long.
        threads: of the runtime.
        started: `time.time()` when the process was started.
    """

    runtime: str
    folder: str
    prompts: list[list[int]]
    tokens: int
    first: int
    repeats: int
    seconds: float
    threads: int
    started: float

    def dumps(self) -> str:
        """As JSON, for `loads`."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Request:
        """The request of `dumps`."""
        return Request(**json.loads(text))


@dataclass(frozen=True)
class Times:
    """One run.

    Attributes:
        prefill: seconds until the first new token of every row is there.
        decode: seconds of all further tokens.
        tokens: the new tokens of the first row; empty where the runtime does not tell.
    """

    prefill: float
    decode: float
    tokens: list[int]


@dataclass(frozen=True)
class Answer:
    """What a process measured: seconds, bytes, and the tokens of the first row of the first run."""

    first: float
    prefills: list[float]
    decodes: list[float]
    peak: int
    tokens: list[int]


class Runtime(Protocol):
    """A loaded model."""

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """Continue each prompt by exactly so many tokens, greedily."""
