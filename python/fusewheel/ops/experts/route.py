"""Which experts of a mixture a token goes to, and what each counts for"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.promise import check_same_device, fail
from fusewheel.dispatch.sharding import Layout, row_wise
from fusewheel.ops._checks import check, check_floating, check_sizes, check_weight_dtype
from fusewheel.ops._rows import compute_dtype, wide


def route(
    logits: Tensor,
    k: int,
    bias: Tensor | None = None,
    sigmoid: bool = False,
    groups: int = 1,
    chosen_groups: int = 1,
    group_best: int = 2,
    normalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The `k` experts of each token, and their weights.

    The scores of a token are the softmax of its logits, or their sigmoid. It goes to the experts
    with the `k` largest numbers `score + bias`. Its weights are the scores of these experts,
    without `bias`, divided by their sum plus 1e-20 if `normalize`, and then times `scale`.

    With `groups` above 1 the experts form that number of groups of equal size. A token then goes
    only to experts in its `chosen_groups` best groups: those in which the sum of the `group_best`
    largest numbers `score + bias` is largest.

    | model | options |
    |---|---|
    | Mixtral, gpt-oss | none |
    | Qwen3-MoE, OLMoE | `normalize=config.norm_topk_prob` |
    | DeepSeek-V3, GLM-4-MoE | `sigmoid=True`, `bias`, `groups`, `chosen_groups`, `scale` |

    If numbers are equal, the one with the lower index comes first; NaN comes before all numbers.
    Without `bias`, logits are compared instead of scores; their order is the same except for
    rounding. Gradients flow from the weights to the logits; PyTorch operators compute them.

    Source: Shazeer et al., "Outrageously Large Neural Networks" (2017); DeepSeek-AI, "DeepSeek-V3
    Technical Report" (2024), for sigmoid, `bias` and groups.

    Args:
        logits: `[tokens, experts]`; float32, bfloat16, float16 or float64.
        k: the number of experts of a token.
        bias: `[experts]`, on the device of `logits`; any of the four dtypes, but float64 only if
            `logits` is float64. Default None, which means 0.
        sigmoid: whether scores are sigmoids; default False, a softmax.
        groups: the number of groups; it divides the number of experts; default 1.
        chosen_groups: the number of groups from which a token's experts are chosen; default 1.
        group_best: how many experts count in the sum of a group; default 2. With one group it is
            not used.
        normalize: whether the weights of a token are divided by their sum; default True.
        scale: the factor of all weights; default 1.

    Returns:
        The weights `[tokens, k]`, float32 (float64 for float64), and the experts int64
        `[tokens, k]`, the largest `score + bias` first. Both are contiguous.

    Raises:
        RuntimeError: a dtype, shape or device is not as above, or a number is out of range.
    """
    best = group_best if groups > 1 else 1
    weights, indices = torch.ops.fusewheel.route(
        logits, k, bias, sigmoid, groups, chosen_groups, best, normalize, scale
    )
    return weights, indices


def _descending(values: Tensor, count: int) -> Tensor:
    """The indices of the largest, of equals the lower one first."""
    order: Tensor = torch.sort(values, dim=-1, descending=True, stable=True).indices
    return order[..., :count]


def _reference(
    logits: Tensor,
    k: int,
    bias: Tensor | None,
    sigmoid: bool,
    groups: int,
    chosen_groups: int,
    group_best: int,
    normalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    z = wide(logits)
    scores = z.sigmoid() if sigmoid else z.softmax(-1)
    by_scores = scores if bias is None else scores + wide(bias).to(scores.dtype)
    choice = (z if bias is None else by_scores).detach()
    if groups > 1:
        of_groups = by_scores.detach().unflatten(-1, (groups, -1))
        best = _descending(of_groups, group_best)
        sums = of_groups.gather(-1, best).sum(-1)
        chosen = torch.zeros_like(sums, dtype=torch.bool)
        chosen = chosen.scatter(-1, _descending(sums, chosen_groups), True)
        inside = chosen.repeat_interleave(logits.shape[-1] // groups, -1)
        choice = torch.where(inside, choice, -torch.inf)
    indices = _descending(choice, k)
    weights = scores.gather(-1, indices)
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale, indices.contiguous()


def _check_number(name: str, number: int, most: Any, what: str) -> None:
    message = f"{name} must be from 1 to {most} ({what}), got {number}"
    check("route", number >= 1, message)
    check("route", number <= most, message)


def _fake(
    logits: Tensor,
    k: int,
    bias: Tensor | None,
    sigmoid: bool,
    groups: int,
    chosen_groups: int,
    group_best: int,
    normalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    op, first = "route", ("logits", logits)
    check_floating(op, first)
    got = list(logits.shape)
    message = f"logits must have shape [tokens, experts] with at least one expert, got {got}"
    if logits.dim() != 2:
        fail(op, message)
    experts = logits.shape[1]
    check(op, experts > 0, message)
    if bias is not None:
        check_same_device(op, ("bias", bias), first)
        check_weight_dtype(op, ("bias", bias), first)
        check_sizes(op, ("bias", bias), (experts,), "the experts")
    _check_number("groups", groups, experts, "the experts")
    check(op, experts % groups == 0, f"groups must divide the {experts} experts, got {groups}")
    size = experts // groups
    _check_number("chosen_groups", chosen_groups, groups, "the groups")
    _check_number("group_best", group_best, size, "the experts of a group")
    _check_number("k", k, size * chosen_groups, "the experts of the chosen groups")
    weights = logits.new_empty((logits.shape[0], k), dtype=compute_dtype(logits))
    return weights, logits.new_empty((logits.shape[0], k), dtype=torch.int64)


def _backward(
    needs: Sequence[bool], grads: Sequence[Any], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    """That of the reference; the bias only chooses, so that its gradient is zero."""
    found: list[Tensor | None] = [None] * len(arguments)
    if needs[0]:
        logits_only = [i == 0 for i in range(len(arguments))]
        found = reference_gradients(_reference, logits_only, grads, arguments)
    found[2] = torch.zeros_like(arguments[2]) if needs[2] else None
    return found


def _samples(make: Make) -> Iterator[Arguments]:
    yield make(37, 60), 4, None, False, 1, 1, 1, True, 1.0
    yield make(9, 33), 33, None, False, 1, 1, 1, False, 1.0
    yield make(7, 24), 6, None, True, 1, 1, 1, True, 2.5
    yield make(7, 24), 5, make(24), True, 6, 2, 2, True, 2.5
    yield make.strided(5, 16), 3, make.strided(16), False, 4, 3, 1, False, 0.5
    yield make.transposed(6, 9), 1, None, True, 1, 1, 1, False, 1.0
    yield make(1, 128), 8, make(128), True, 8, 4, 2, True, 2.5
    yield make(0, 8), 2, make(8), True, 1, 1, 1, True, 1.0


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    logits, bias = make(3, 8), make(8)
    rest = (True, 1.0)
    shape = r"logits must have shape \[tokens, experts\] with at least one expert, got"
    yield BadInput((logits.int(), 2, None, True, 1, 1, 1, *rest), "logits must be float32.*int32")
    yield BadInput((logits[0], 2, None, True, 1, 1, 1, *rest), rf"{shape} \[8\]")
    yield BadInput((logits[:, :0], 2, None, True, 1, 1, 1, *rest), rf"{shape} \[3, 0\]")
    yield BadInput((logits, 2, bias[1:], True, 1, 1, 1, *rest), r"bias must have shape \[8\]")
    yield BadInput((logits, 2, bias.int(), True, 1, 1, 1, *rest), "bias must be float32.*got int32")
    for k in (0, -1, 9):
        yield BadInput((logits, k, None, True, 1, 1, 1, *rest), f"k must be from 1 to 8.*got {k}")
    yield BadInput((logits, 5, None, True, 4, 2, 1, *rest), "k must be from 1 to 4.*got 5")
    yield BadInput((logits, 2, None, True, 0, 1, 1, *rest), "groups must be from 1 to 8.*got 0")
    yield BadInput((logits, 2, None, True, 3, 1, 1, *rest), "groups must divide the 8 experts")
    few = "chosen_groups must be from 1 to 4.*got 5"
    yield BadInput((logits, 2, None, True, 4, 5, 1, *rest), few)
    best = "group_best must be from 1 to 2.*got 3"
    yield BadInput((logits, 2, None, True, 4, 2, 3, *rest), best)
    if make.dtype != torch.float64:
        wider = "bias may be float64 only where logits is"
        yield BadInput((logits, 2, bias.double(), True, 1, 1, 1, *rest), wider)


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for tokens in (1, 256):
        yield f"{tokens} tokens, 8 of 128", (
            make(tokens, 128), 8, None, False, 1, 1, 1, True, 1.0,
        )  # fmt: skip
        yield f"{tokens} tokens, 8 of 256 in 8 groups", (
            make(tokens, 256), 8, make(256), True, 8, 4, 2, True, 2.5,
        )  # fmt: skip


def _sharding(*arguments: Any) -> Iterator[Layout]:
    yield from row_wise((0,), ("rows", "rows"))(*arguments)


OPERATORS = (
    Operator(
        name="route",
        reference=_reference,
        fake=_fake,
        shapes=("[logits[0], k]", "[logits[0], k]"),
        backward=_backward,
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=route,
    ),
)
