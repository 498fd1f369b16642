"""Do all modes compute the same? Required in fp32, reported in bf16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewheel.demo.results import ModeResult
from fusewheel.demo.settings import Settings

LOSS_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Check:
    """One comparison with the reference mode."""

    dtype: str
    name: str
    # Ties between likely tokens may fall either way in bf16: there a difference is no failure.
    required: bool
    equal: bool
    detail: str

    @property
    def failed(self) -> bool:
        """A difference where none is allowed."""
        return self.required and not self.equal


def run_checks(settings: Settings, results: Sequence[ModeResult]) -> list[Check]:
    """Compare the tokens and the losses of every mode with those of the reference mode."""
    checks: list[Check] = []
    for dtype in settings.dtypes:
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
    return checks


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
    pair = f"{result.mode} and {reference.mode}"
    detail = (
        f"{pair}: all {count} tokens identical"
        if equal
        else f"{pair}: the first {agreeing} of {count} tokens agree"
    )
    return Check(reference.dtype, "tokens", required, equal, detail)


def _compare_losses(reference: ModeResult, result: ModeResult, required: bool) -> Check:
    """Compare the first losses: the later ones depend on the updates before them."""
    expected, actual = reference.losses[0], result.losses[0]
    error = abs(actual - expected) / abs(expected)
    detail = (
        f"{result.mode} and {reference.mode}: loss {actual:.6f} and {expected:.6f}, "
        f"relative difference {error:.1e}"
    )
    # Written so that a loss that is no number counts as a difference.
    return Check(reference.dtype, "loss", required, error <= LOSS_TOLERANCE, detail)
