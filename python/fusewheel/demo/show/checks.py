"""Compares the results of all modes. They must agree in fp32 and for 4-bit weights in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewheel.demo.settings import INT4, INT4_INT8, Settings
from fusewheel.demo.show.results import ModeResult

LOSS_TOLERANCE = 1e-4
# As in the tests of the operators: at most this many times eager's error, against float64.
LOGITS_FACTOR = 2.0


@dataclass(frozen=True)
class Check:
    """One comparison with the reference mode."""

    dtype: str
    name: str
    # In bf16, two tokens may be equally likely, and a difference is not a failure.
    required: bool
    equal: bool
    detail: str

    @property
    def failed(self) -> bool:
        """Whether there is a difference that is not allowed."""
        return self.required and not self.equal


def run_checks(settings: Settings, results: Sequence[ModeResult]) -> list[Check]:
    """Compare the tokens and the losses of every mode with those of the reference mode."""
    checks: list[Check] = []
    for dtype in settings.floating:
        by_mode = {result.mode: result for result in results if result.dtype == dtype}
        reference = by_mode.get(settings.reference)
        required = dtype == "fp32"
        for result in by_mode.values():
            if not result.tokens_repeat:
                detail = f"{result.mode}: the repeats generated different tokens"
                checks.append(Check(dtype, "repeats", required, False, detail))
            if reference is None or result is reference:
                continue
            if reference.tokens and result.tokens:
                checks.append(_compare_tokens(reference, result, required))
            if reference.losses and result.losses:
                checks.append(_compare_losses(reference, result, required))
    return checks + _int4_checks(settings, results)


def _int4_checks(settings: Settings, results: Sequence[ModeResult]) -> list[Check]:
    """Compares tokens, losses and logits of 4-bit weights with fp32, which has the same weights."""
    found = {(result.dtype, result.mode): result for result in results}
    own = (INT4, settings.reference)
    reference = found.get(("fp32", settings.reference)) or found.get(own)
    checks: list[Check] = []
    for result in results:
        if result.dtype not in (INT4, INT4_INT8):
            continue
        # With activations rounded to int8, results may differ.
        required = result.dtype == INT4
        if reference is not None and result is not reference:
            if reference.tokens and result.tokens:
                checks.append(_compare_tokens(reference, result, required))
            if reference.losses and result.losses:
                checks.append(_compare_losses(reference, result, required))
        if result.logits_error is not None and result.eager_logits_error is not None:
            checks.append(_compare_logits(result.logits_error, result.eager_logits_error, result))
        if len(result.losses) > 1:
            first, last = result.losses[0], result.losses[-1]
            detail = (
                f"{result.mode}: {first:.4f} to {last:.4f} in {len(result.losses)} recorded steps"
            )
            checks.append(Check(result.dtype, "adapters learn", required, last < first, detail))
    return checks


def _compare_logits(error: float, eager: float, result: ModeResult) -> Check:
    detail = (
        f"{result.mode}: largest error against float64 {error:.1e}, eager fp32 {eager:.1e}, "
        f"at most {LOGITS_FACTOR:g} times that"
    )
    required = result.dtype == INT4
    return Check(result.dtype, "logits", required, error <= LOGITS_FACTOR * eager, detail)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens agree before the first difference."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _compare_tokens(reference: ModeResult, result: ModeResult, required: bool) -> Check:
    agreeing = common_prefix(reference.tokens, result.tokens)
    equal = reference.tokens == result.tokens
    count = len(reference.tokens)
    pair = _pair(reference, result)
    detail = (
        f"{pair}: all {count} tokens identical"
        if equal
        else f"{pair}: the first {agreeing} of {count} tokens agree"
    )
    return Check(result.dtype, "tokens", required, equal, detail)


def _compare_losses(reference: ModeResult, result: ModeResult, required: bool) -> Check:
    """Compare the first losses: the later ones depend on the updates before them."""
    expected, actual = reference.losses[0], result.losses[0]
    error = abs(actual - expected) / abs(expected)
    detail = (
        f"{_pair(reference, result)}: loss {actual:.6f} and {expected:.6f}, "
        f"relative difference {error:.1e}"
    )
    # Written so that a NaN counts as a difference.
    return Check(result.dtype, "loss", required, error <= LOSS_TOLERANCE, detail)


def _pair(reference: ModeResult, result: ModeResult) -> str:
    other = "" if reference.dtype == result.dtype else f"{reference.dtype} "
    return f"{result.mode} and {other}{reference.mode}"
