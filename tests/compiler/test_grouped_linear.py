"""Products of sorted rows, as PyTorch and transformers write them."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
from oracle import assert_program_as_good_as_eager

Tensor = torch.Tensor
ENDS = torch.tensor([4, 4, 12], dtype=torch.int32)
HAS_GROUPED_MM = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "grouped_mm"),
    reason="this torch has no torch.nn.functional.grouped_mm, so no model can call it",
)


def operands(transposed: bool) -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 16).requires_grad_()
    weight = torch.randn(3, 16, 8) if transposed else torch.randn(3, 8, 16)
    return x, weight.requires_grad_()


@pytest.mark.parametrize("transposed", [False, True])
def test_that_of_transformers(compare: Any, transposed: bool) -> None:
    pytest.importorskip("transformers.integrations.moe")

    def product(x: Tensor, weight: Tensor) -> Tensor:
        turned = weight if transposed else weight.transpose(-2, -1)
        found: Tensor = torch.ops.transformers.grouped_mm_fallback(x, turned, offs=ENDS)
        return found

    report = compare(product, *operands(transposed))
    assert report.counts() == {"grouped_linear": 1}, report


@HAS_GROUPED_MM
def test_that_of_torch(compare: Any) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.grouped_mm(x, weight.transpose(-2, -1), offs=ENDS)

    def exact(x: Tensor, weight: Tensor) -> Tensor:
        return torch.cat([x[:4] @ weight[0].mT, x[4:] @ weight[2].mT])

    x, weight = (t.detach().bfloat16() for t in operands(False))
    with torch.no_grad():
        report = compare(product, x, weight, exact=exact)
    assert report.counts() == {"grouped_linear": 1}, report


@HAS_GROUPED_MM
def test_groups_of_columns_are_left_alone(compare: Any) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.grouped_mm(x, weight, offs=8 * ENDS // 3)

    x, weight = torch.randn(16, 32).bfloat16(), torch.randn(32, 8).bfloat16()
    with torch.no_grad():
        report = compare.bits(product, x, weight)
    assert report.counts() == {}, report
    assert "dimensions" in str(report.refusals), report


@HAS_GROUPED_MM
def test_groups_of_equal_size_are_left_alone(compare: Any) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.grouped_mm(x, weight)

    x, weight = torch.randn(3, 4, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    with torch.no_grad():
        report = compare.bits(product, x, weight)
    assert report.counts() == {}, report
    assert "no ends" in str(report.refusals), report


def batched(x: Tensor, weight: Tensor, numbers: Tensor, transposed: bool) -> Tensor:
    """As `batched_mm` of transformers."""
    chosen = weight[numbers]
    if transposed:
        return torch.bmm(x.unsqueeze(1), chosen).squeeze(1)
    return torch.bmm(chosen, x.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("transposed", [False, True])
def test_batched_products(compare: Any, transposed: bool) -> None:
    x, weight = torch.randn(5, 64).requires_grad_(), torch.randn(4, 64, 64).requires_grad_()
    numbers = torch.tensor([2, 0, -1, 2, 0])
    report = compare(batched, x, weight, numbers, transposed)
    assert report.counts() == {"grouped_linear": 1}, report


def test_batched_products_refuse_a_number_that_is_none_of_a_group(compare: Any) -> None:
    compiled, _ = compare.compile(batched)
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        compiled(torch.randn(2, 64), torch.randn(4, 64, 64), torch.tensor([0, 4]), False)


def test_small_batched_products_are_left_alone(compare: Any) -> None:
    numbers = torch.tensor([2, 0, 1])
    report = compare(batched, torch.randn(3, 8), torch.randn(3, 8, 8), numbers, False)
    assert report.counts() == {}, report
    assert "the weights are small" in str(report.refusals), report


def outer(x: Tensor, weight: Tensor, numbers: Tensor) -> Tensor:
    return torch.bmm(weight[numbers], x.unsqueeze(1))


def of_rows(x: Tensor, weight: Tensor, numbers: Tensor) -> Tensor:
    return torch.bmm(weight[numbers], x.unsqueeze(-1))


def under_autocast(x: Tensor, weight: Tensor, numbers: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return of_rows(x, weight, numbers)


WEIGHT, ONE_EACH, ONE_OF_TWO = (
    torch.ones(4, 64, 64),
    torch.tensor([2, 0, 1]),
    torch.tensor([[1, 0]] * 3),
)
OTHERS: dict[str, tuple[Any, tuple[Tensor, ...], str]] = {
    "outer": (outer, (torch.ones(3, 5), WEIGHT[..., :1], ONE_EACH), "no rows of one matrix"),
    "of_rows": (of_rows, (torch.ones(3, 64), WEIGHT[0], ONE_OF_TWO), "not 2, 3 and 1"),
    "autocast": (under_autocast, (torch.ones(3, 64), WEIGHT, ONE_EACH), "its result are"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_of_what_is_taken(compare: Any, name: str) -> None:
    function, arguments, reason = OTHERS[name]
    report = compare.bits(function, *arguments)
    assert report.counts() == {}, report
    assert reason in str(report.refusals), report


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_weights_of_any_size_are_left_alone(compare: Any, dim: int) -> None:
    """Whether it pays depends on the sizes, of which one is not known here."""
    x, weight = torch.randn(5, 64), torch.randn(4, 64, 64)
    compiled, recorder = compare.compile(batched)
    torch._dynamo.mark_dynamic(weight, dim)
    if dim == 2:
        torch._dynamo.mark_dynamic(x, 1)
    numbers = torch.tensor([2, 0, -1, 2, 0])
    assert torch.equal(compiled(x, weight, numbers, False), batched(x, weight, numbers, False))
    report = recorder.report()
    assert report.counts() == {}, report
    assert "sizes of its weights are not known" in str(report.refusals), report


@pytest.mark.parametrize("way", ["grouped_mm", "batched_mm", "fusewheel"])
def test_another_choice_of_experts_compiles_nothing_new(compare: Any, way: str) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.olmoe.modeling_olmoe import OlmoeExperts

    fusewheel.transformers.register()
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_experts": 6}
    config = transformers.OlmoeConfig(**sizes, experts_implementation=way)
    module = OlmoeExperts(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    compiled, recorder = compare.compile(module, fullgraph=True)
    x, weights = torch.randn(5, 64), torch.rand(5, 2)
    for choice in ([[0, 1]] * 5, [[5, 3], [2, 0], [4, 1], [0, 5], [3, 2]], [[4, 5]] * 5):
        numbers = torch.tensor(choice)
        config._experts_implementation = "eager"
        want = module(x, numbers, weights)
        exact = copy.deepcopy(module).double()(x.double(), numbers, weights.double())
        config._experts_implementation = way
        assert_program_as_good_as_eager(compiled(x, numbers, weights), want, exact)
    assert len(compare.graphs) == 1
    calls = [str(target) for target in compare.targets()]
    assert sum(target.startswith("fusewheel.grouped_linear") for target in calls) == 2, calls
    assert way == "fusewheel" or recorder.report().counts()["grouped_linear"] == 2
