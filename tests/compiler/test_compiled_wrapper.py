"""`torch.compile(model, backend="fusewheel").generate()`: the forward in it runs compiled."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_models import build, tokens
from fusewheel._torch import compiled_module
from nightly import NIGHTLY
from torch._dynamo.utils import counters

OPTIONS = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "disable_compile": True}


@pytest.fixture(autouse=True)
def by_dynamo() -> Iterator[None]:
    """Dynamo counts graphs, which shows what ran compiled."""
    with fusewheel.compiler.disable("capture"):
        yield


@pytest.fixture
def model() -> Any:
    return build("Llama", num_hidden_layers=1).eval()


def _graphs() -> int:
    count: int = counters["stats"]["unique_graphs"]
    return count


def _compiled(model: Any, backend: str = "fusewheel") -> Any:
    counters.clear()
    options = {"inner": "none"} if backend == "fusewheel" else None
    return torch.compile(model, backend=backend, options=options)


def test_generate_runs_compiled(model: Any) -> None:
    ids = tokens(5)
    expected = model.generate(ids, **OPTIONS)
    compiled = _compiled(model)
    assert torch.equal(compiled.generate(ids, **OPTIONS), expected)
    found = counters["fusewheel"]
    graphs = _graphs()
    assert graphs > 0
    assert found["silu_mul"] == graphs

    # Calls of the wrapper use the same graphs, and so does `Module.compile`.
    before = _graphs()
    with torch.no_grad():
        compiled(tokens(5), use_cache=True, logits_to_keep=1)
    assert _graphs() - before <= 1
    again = _graphs()
    assert torch.equal(compiled.generate(ids, **OPTIONS), expected)
    assert _graphs() == again


def test_model_inside_stays_uncompiled(model: Any) -> None:
    ids, compiled = tokens(5), _compiled(model)
    # Of one token: a second graph says no more.
    options = OPTIONS | {"max_new_tokens": 1}
    expected = compiled.generate(ids, **options)
    graphs = _graphs()
    model.generate(tokens(9), **options)
    assert _graphs() == graphs > 0
    assert torch.equal(model.generate(ids, **options), expected)
    assert "_compiled_call_impl" not in vars(model)


@NIGHTLY
def test_other_threads_run_the_model_as_it_is(model: Any) -> None:
    """While one thread generates with the compiled model, another one calls the model inside."""
    ids, compiled = tokens(5), _compiled(model)

    def elsewhere(*arguments: Any) -> torch.Tensor:
        before = _graphs()
        thread = threading.Thread(target=lambda: model(tokens(9), use_cache=False))
        thread.start()
        thread.join()
        assert _graphs() == before
        return torch.zeros(2, dtype=torch.bool)

    compiled.generate(ids, stopping_criteria=[elsewhere], **OPTIONS)
    assert _graphs() > 0


def test_other_backends_stay_as_they_are(model: Any) -> None:
    compiled = _compiled(model, "eager")
    method = compiled.generate
    assert method.__self__ is model
    compiled.generate(tokens(5), **OPTIONS)
    assert _graphs() == 0


def test_other_methods_stay_as_they_are(model: Any) -> None:
    assert _compiled(model).get_input_embeddings.__self__ is model


@NIGHTLY
def test_a_model_compiled_in_place_stays_so(model: Any) -> None:
    ids = tokens(5)
    expected = model.generate(ids, **OPTIONS)
    model.compile(backend="eager")
    own = model._compiled_call_impl
    assert torch.equal(_compiled(model).generate(ids, **OPTIONS), expected)
    assert model._compiled_call_impl is own


def test_an_error_leaves_nothing_behind(model: Any) -> None:
    compiled = _compiled(model)
    with pytest.raises(TypeError):
        compiled.generate(tokens(5), no_such_argument=object(), max_new_tokens="many")
    assert "_compiled_call_impl" not in vars(model)


def test_warns_once_where_torch_differs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "_has_slot", False)
    compiled_module._warn_once.cache_clear()
    compiled = _compiled(model)
    with pytest.warns(UserWarning, match=r'write model\.compile\(backend="fusewheel"\)') as caught:
        compiled.generate(tokens(5), **OPTIONS)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled.generate(tokens(5), **OPTIONS)
    assert _graphs() == 0
