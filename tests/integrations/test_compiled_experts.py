"""Experts of transformers that are compiled with `experts_implementation="eager"`, a loop over the
experts that were chosen: fusewheel captures other code in its place.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel._torch.dynamo import capturing, is_capturing
from fusewheel.compiler.match.captured_experts import note_captured_experts
from fusewheel.compiler.match.report import Recorder
from fusewheel.dispatch.operator import Make
from fusewheel.transformers._experts import captured_experts
from integrations.test_experts import CHOSEN, EXPERTS, MODELS, build, experts_of, results
from integrations.tiny_models import SIZES, tokens
from nightly import NIGHTLY
from oracle import (
    assert_as_good_as_call,
    assert_program_as_good_as_eager,
    assert_vector_as_good_as_eager,
)
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

OPTIONS = {"inner": "none"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch.compiler.reset()


def layer() -> Any:
    module = experts_of(build("Olmoe"))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return module


def arguments(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their experts, and what each of them counts for."""
    weights, indices = fusewheel.route(Make(seed=seed)(11, EXPERTS), CHOSEN)
    return Make(seed=seed)(11, SIZES["hidden_size"]), indices, weights


# Of one kind, and with interleaved weights and biases; the others are like the first.
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("Mixtral", "GptOss") else NIGHTLY) for n in MODELS],
)
def test_values_and_gradients(name: str) -> None:
    model = build(name)
    compiled = copy.deepcopy(model)
    experts_of(compiled).compile(backend="fusewheel", options=OPTIONS, fullgraph=True)
    got = results(compiled, torch.float32)
    eager, exact = (
        results(copy.deepcopy(model), torch.float32),
        results(copy.deepcopy(model), torch.float32, exact=True),
    )
    for i, values in enumerate(zip(got, eager, exact, strict=True)):
        assert_program_as_good_as_eager(*values, what=f"result {i}")
    assert counters["stats"]["unique_graphs"] == 1


def test_another_routing_compiles_nothing_new() -> None:
    module = layer()
    compiled = torch.compile(module, backend="fusewheel", options=OPTIONS, fullgraph=True)
    with torch.no_grad():
        for seed in range(4):
            given = arguments(seed)
            assert_as_good_as_call(compiled(*given), module, *given)
    assert counters["stats"]["unique_graphs"] == 1


def test_other_backends_and_plain_calls_run_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = layer(), arguments()
    used = CompileCounter()
    with torch._dynamo.config.patch(error_on_recompile=False), torch.no_grad():
        want = module(*given)
        torch.compile(module, backend="fusewheel", options=OPTIONS)(*given)
        torch.testing.assert_close(torch.compile(module, backend=used)(*given), want)
        assert used.frame_count > 1
        monkeypatch.setattr("fusewheel.transformers._experts.mixture", None)
        torch.testing.assert_close(module(*given), want, rtol=0, atol=0)


def test_switched_off() -> None:
    module, given = layer(), arguments()
    with torch._dynamo.config.patch(error_on_recompile=False), torch.no_grad():
        compiled = torch.compile(module, backend="fusewheel", options=OPTIONS)
        compiled(*given)
        assert not counters["graph_break"]
        with fusewheel.compiler.disable("experts"):
            torch.testing.assert_close(compiled(*given), module(*given), rtol=0, atol=0)
            assert counters["graph_break"]
            assert len(fusewheel.explain(module, *given).graph_breaks) > 0
        assert fusewheel.explain(module, *given).graphs == 1


def test_exported() -> None:
    module, given = layer(), arguments()
    with torch.no_grad():
        program = fusewheel.export(module, given)
        for seed in range(2):
            other = arguments(seed)
            assert_as_good_as_call(program.module()(*other), module, *other)


def test_other_choices_and_kinds_of_experts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = pytest.importorskip("transformers.integrations.moe").ExpertsInterface

    class Own(interface):  # type: ignore[misc, valid-type]
        """As the experts in FP8 have it, whose weights are stored in another way."""

    def loop() -> None: ...

    products = "grouped_mm", "batched_mm"
    for block, by_dynamo in (
        (contextlib.nullcontext(), False),
        (capturing(), False),
        (capturing(), True),
    ):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda found=by_dynamo: found)
        with block:
            captures = is_capturing()
            assert (interface().get_interface("eager", loop) is captured_experts) == captures
            for name in products:
                changes = interface().get_interface(name, loop) is captured_experts
                assert changes == (captures and not by_dynamo)
                assert Own().get_interface(name, loop).__name__.startswith(name)
            assert Own().get_interface("eager", loop) is loop
            with pytest.raises(KeyError, match="not a valid experts implementation"):
                interface().get_interface("another", loop)


@pytest.mark.parametrize("name", [pytest.param(name, marks=NIGHTLY) for name in MODELS])
def test_a_whole_model(name: str) -> None:
    plain = build(name)
    compiled = torch.compile(plain, backend="fusewheel", fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            ids = torch.randint(3, 60, (2, 9))
            got = compiled(input_ids=ids, use_cache=False).logits
            assert_as_good_as_call(got, plain, input_ids=ids, use_cache=False)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", [pytest.param(name, marks=NIGHTLY) for name in MODELS])
def test_a_step_of_training(name: str) -> None:
    plain = build(name).train()
    compiled = copy.deepcopy(plain)
    compiled.compile(backend="fusewheel", options=OPTIONS, fullgraph=True)
    ids = tokens(2, 9)

    def step(model: Any) -> tuple[Tensor, Tensor]:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return loss.detach(), torch.cat(grads)

    (loss, got), (eager_loss, eager) = step(compiled), step(plain)
    exact_loss, exact = step(copy.deepcopy(plain).double())
    assert_program_as_good_as_eager(loss, eager_loss, exact_loss)
    assert_vector_as_good_as_eager(got, eager, exact, "gradients")
    assert counters["stats"]["unique_graphs"] == 1


@NIGHTLY
def test_a_frozen_model_writes_the_same_text() -> None:
    model, ids = build("Olmoe"), tokens(1, 9)
    options = {"max_new_tokens": 6, "do_sample": False}
    want = model.generate(ids, **options)
    fusewheel.freeze(model, options=OPTIONS)
    counters.clear()
    assert torch.equal(model.generate(ids, **options), want)
    assert not counters["stats"], "Dynamo compiled it"


def test_explain_says_what_is_captured() -> None:
    fusewheel.transformers.register()
    model, ids = build("Olmoe"), tokens(2, 9)
    with torch.no_grad():
        report = fusewheel.explain(model, input_ids=ids, use_cache=False)
        model.set_experts_implementation("fusewheel")
        asked = fusewheel.explain(model, input_ids=ids, use_cache=False)
    (found,) = (r for r in report.replacements if r.pattern == "experts")
    assert (found.count, found.operator) == (2, "fusewheel::grouped_linear")
    assert "self.experts(" in found.code
    assert re.search(r"replaced +experts +2 ", str(report))
    # Here nothing was captured in the place of a loop.
    assert asked.count("experts") == 0


def test_explain_says_that_one_operator_is_captured() -> None:
    module, given = layer(), [a[:1] for a in arguments()]
    with torch.no_grad():
        report = fusewheel.explain(module, *given)
    (found,) = (r for r in report.replacements if r.pattern == "experts")
    assert (found.count, found.operator) == (1, "fusewheel::experts")


@pytest.mark.parametrize("name", ["overloadpacket", "default"])
def test_an_operator_is_noted_by_either_of_its_names(name: str) -> None:
    graph, recorder = torch.fx.Graph(), Recorder()
    operator = torch.ops.fusewheel.grouped_linear.default
    for _ in range(4):  # two blocks
        node = graph.call_function(operator if name == "default" else operator.overloadpacket)
        node.meta["stack_trace"] = (
            'File "/model.py", line 7, in forward\n    y = self.experts(x)\n'
            'File "/transformers.py", line 3, in call\n    return way(x)\n'
            'File "/fusewheel.py", line 5, in captured_experts\n    ...\n'
        )
    note_captured_experts(graph, recorder)
    (found,) = recorder.report().replacements
    assert (found.count, found.source, found.code) == (2, "/model.py:7", "y = self.experts(x)")
