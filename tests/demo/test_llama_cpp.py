"""llama.cpp beside the other modes: whether it runs, and what it is asked."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from fusewheel.demo import llama_cpp
from fusewheel.demo.llama_cpp import LlamaSpec, why_not
from fusewheel.demo.settings import QUICK, Settings


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: object())


class Server:
    """Answers like the server of xllamacpp."""

    error: str | None = None

    def __init__(self, params):
        self.params = params
        self.requests = []

    def handle_completions(self, request):
        self.requests.append(request)
        if self.error:
            return {"error": self.error}
        tokens = [{"id": token} for token in (3, 1, 4, 1, 5)]
        logprobs = {"content": tokens} if "logprobs" in request else None
        return {
            "choices": [{"logprobs": logprobs}],
            "timings": {"prompt_ms": 250.0, "predicted_ms": 1500.0},
        }


@pytest.fixture
def session(monkeypatch, tiny_bundle):
    def params():
        threads = SimpleNamespace(n_threads=-1)
        return SimpleNamespace(
            model=SimpleNamespace(path=""),
            cpuparams=threads,
            cpuparams_batch=SimpleNamespace(n_threads=-1),
        )

    package = SimpleNamespace(CommonParams=params, Server=Server)
    monkeypatch.setitem(sys.modules, "xllamacpp", package)
    return LlamaSpec(str(tiny_bundle[0]), 5, 3).open()


def test_it_runs_where_it_is_installed(installed):
    assert why_not(Settings()) is None


def test_it_is_left_out_with_a_reason(installed, monkeypatch):
    assert "whole model" in (why_not(QUICK) or "")
    assert "not asked for" in (why_not(Settings(llama_cpp=False)) or "")
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in (why_not(Settings()) or "")


def test_it_has_the_same_file_prompt_and_threads(session, tiny_bundle):
    session.first("prefill")
    params, request = session._server.params, session._server.requests[0]
    assert params.model.path == str(tiny_bundle[0] / "tiny.gguf")
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 3
    assert request["prompt"] == [7 * index % 97 for index in range(12)]
    assert (request["n_predict"], request["top_k"]) == (5, 1)


def test_its_own_clock_counts(session):
    assert session.first("prefill") | {"seconds": 0.25, "tokens": [3]} == session.first("prefill")
    assert session.run("decode") == {"seconds": 1.5, "tokens": [3, 1, 4, 1, 5]}
    # A timed run asks for nothing but the text, and decoding is part of it.
    assert len(session._server.requests) == 4
    assert "logprobs" not in session._server.requests[-1]


def test_an_error_is_raised(session):
    session._server.error = "context too small"
    with pytest.raises(RuntimeError, match="context too small"):
        session.run("prefill")
