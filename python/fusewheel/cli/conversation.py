"""A conversation with a language model: what was said, and the cache of keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusewheel._core.cache_argument import cache_argument


@dataclass(frozen=True)
class Answer:
    """What the model said.

    Attributes:
        text: without special tokens.
        tokens: how many were generated.
        first_seconds: until the first of them, which includes reading the prompt.
        seconds: until the last.
        interrupted: whether the user stopped it.
        forgotten: the oldest questions that were dropped, with their answers, to make room.
    """

    text: str
    tokens: int
    first_seconds: float
    seconds: float
    interrupted: bool
    forgotten: int

    def __str__(self) -> str:
        if not self.tokens:
            return "no tokens"
        rest = self.seconds - self.first_seconds
        rate = f", then {(self.tokens - 1) / rest:.1f} tokens/s" if self.tokens > 1 else ""
        return f"{self.tokens} tokens; {self.first_seconds:.1f} s to the first{rate}"


class Conversation:
    """Questions and answers in turn.

    The keys and values of what was said stay in a cache, so the model reads each text once.

    Args:
        model: a language model of transformers.
        tokenizer: its tokenizer. Without a chat template, texts are lines that the model continues.
        system: what the model is told first; default None, which leaves it to the template.
        max_tokens: the largest number of tokens of an answer; default 512.
        temperature: 0 takes the likeliest token; larger numbers draw more freely. Default 0.7.
        new_cache: makes an empty cache from the model's configuration; default None, which means
            transformers' `DynamicCache`.

    Raises:
        ValueError: the template knows no system message.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        system: str | None = None,
        max_tokens: int = 512,
        temperature: float = 0.7,
        new_cache: Callable[[Any], Any] | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._max_tokens = max_tokens
        self._limit = int(getattr(model.config, "max_position_embeddings", 0) or 2**31)
        ends = [*_listed(self._model.generation_config.eos_token_id), tokenizer.eos_token_id]
        self._options: dict[str, Any] = {
            "do_sample": temperature > 0,
            "eos_token_id": sorted({end for end in ends if end is not None}) or None,
            "pad_token_id": next((end for end in ends if end is not None), 0),
        }
        if temperature > 0:
            self._options["temperature"] = temperature
        else:  # A model may bring settings for drawing, which would be warned of.
            self._options |= dict.fromkeys(("temperature", "top_k", "top_p"))
        self._said: list[dict[str, str]] = []
        self._read: list[int] = []
        self._cache: Any = None
        self._new_cache = new_cache or _dynamic_cache
        self.reset()
        # A template that takes no system message says so here.
        self._ids([{"role": "user", "content": ""}])

    def reset(self) -> None:
        """Forget everything that was said."""
        self._said = []
        self._forget_cache()

    def ask(self, question: str, write: Callable[[str], None]) -> Answer:
        """Generate an answer.

        Args:
            question: what the user says.
            write: is called with each piece of the answer, as soon as it is there.

        Returns:
            the answer. One that the user stops with an interruption is kept as far as it came.

        Raises:
            ValueError: the question alone is longer than what the model can read.
        """
        self._said.append({"role": "user", "content": question})
        forgotten = 0
        ids = self._ids(self._said)
        while len(ids) + self._max_tokens > self._limit and len(self._said) > 1:
            del self._said[:2]
            forgotten += 1
            ids = self._ids(self._said)
        room = min(self._max_tokens, self._limit - len(ids))
        if room < 1:
            self._said.pop()
            raise ValueError(
                f"chat: the question has {len(ids)} tokens with what the template adds, and the "
                f"model reads {self._limit} at most"
            )
        self._keep_prefix(ids)
        start, streamer = time.perf_counter(), _streamer(self._tokenizer, write)
        interrupted = False
        try:
            self._generate(ids, room, streamer)
        except KeyboardInterrupt:
            interrupted = True
            self._forget_cache()
        text = "".join(streamer.pieces)
        self._said.append({"role": "assistant", "content": text})
        ended = time.perf_counter() - start
        first = streamer.first - start if streamer.tokens else ended
        return Answer(text, streamer.tokens, first, ended, interrupted, forgotten)

    def _generate(self, ids: list[int], room: int, streamer: Any) -> None:
        given = torch.tensor([ids])
        found = self._model.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            **{cache_argument(): self._cache},
            max_new_tokens=room,
            streamer=streamer,
            **self._options,
        )
        # The last token was generated, and not read.
        self._read = found[0, : self._cache.get_seq_length()].tolist()

    def _ids(self, said: list[dict[str, str]]) -> list[int]:
        messages = [*self._system, *said]
        if self._tokenizer.chat_template is None:
            text = "\n".join([*(message["content"] for message in messages), ""])
            return list(self._tokenizer(text)["input_ids"])
        from jinja2 import TemplateError

        try:
            found = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True
            )
        except TemplateError as error:
            raise ValueError(
                f"chat: the model's template does not take these messages: {error}"
            ) from error
        return list(found["input_ids"])

    def _keep_prefix(self, ids: list[int]) -> None:
        """Cut the cache to what it has in common with `ids`, but for the last of these."""
        pairs = zip(self._read, ids[:-1], strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if common is None:
            common = min(len(self._read), len(ids) - 1)
        surplus = len(self._read) - common
        if surplus and any(self._cache.is_sliding):  # it may have dropped what is needed again
            self._forget_cache()
        elif surplus:
            self._cache.crop(-surplus)
            del self._read[common:]

    def _forget_cache(self) -> None:
        self._cache = self._new_cache(self._model.config)
        self._read = []


def _dynamic_cache(config: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=config)


def _listed(tokens: int | list[int] | None) -> list[int]:
    return [] if tokens is None else [tokens] if isinstance(tokens, int) else list(tokens)


def _streamer(tokenizer: Any, write: Callable[[str], None]) -> Any:
    """A streamer of transformers that notes the pieces, and the time of the first token."""
    from transformers import TextStreamer

    class Streamer(TextStreamer):
        def __init__(self) -> None:
            super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
            self.pieces: list[str] = []
            self.tokens = 0
            self.first = 0.0

        def put(self, value: Any) -> None:
            if not self.next_tokens_are_prompt:
                self.first = self.first or time.perf_counter()
                self.tokens += value.numel()
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if text:
                self.pieces.append(text)
                write(text)

    return Streamer()
