"""One run of the demo, from the weights to the report."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fusewheel._core.process import Child
from fusewheel.demo.llama_cpp import why_not
from fusewheel.demo.measure import environment, measure
from fusewheel.demo.models import formats
from fusewheel.demo.models.weights import Preparer, decode_text
from fusewheel.demo.progress import Progress
from fusewheel.demo.settings import BATCH, FORMATS, INT4, SEQUENCE, Settings
from fusewheel.demo.show.checks import run_checks
from fusewheel.demo.show.report import Report
from fusewheel.demo.show.results import Labels, ModeResult, rows


def prepare(settings: Settings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Convert the weights into `folder`, in a process of its own."""
    factory = functools.partial(Preparer, str(folder), settings.layers, not settings.quick)
    env = environment(settings, folder, "prepare", "fp32")
    with Child(factory, environment=env) as child, progress.step("convert the weights") as step:
        model: dict[str, Any] = child.call("prepare", waiting=step.tick)
    return model


def run_demo(settings: Settings, folder: Path, model: dict[str, Any], progress: Progress) -> Report:
    """Measure every mode on the bundle in `folder` and compare them."""
    found = measure(settings, folder, progress)
    labels = Labels(model["prompt_tokens"], BATCH, model.get("sequence", SEQUENCE))
    return Report(
        settings=settings,
        model=model,
        machine=found.machine,
        results=found.results,
        rows=rows(settings, found.results, labels),
        checks=run_checks(settings, found.results),
        formats=formats.lines(settings, found.results),
        text=_text(settings, found.results, folder, model.get("end_of_text")),
        left_out=[*_left_out(settings, model), *found.left_out],
    )


def _text(
    settings: Settings, results: list[ModeResult], folder: Path, end_of_text: int | None
) -> str | None:
    """The text of the reference mode in the first dtype, or of another mode that generated one."""
    candidates = sorted(results, key=lambda result: result.mode != settings.reference)
    for result in candidates:
        if result.tokens:
            return decode_text(folder, result.tokens, end_of_text)
    return None


def _left_out(settings: Settings, model: dict[str, Any]) -> list[str]:
    """What the full run does and this run does not."""
    reason = why_not(settings) if INT4 in settings.dtypes else None
    missing = [reason] if reason else []
    if not settings.quick:
        return missing
    layers, total = model["layers"], model["layers_of_model"]
    dtypes = [f"{dtype} (see --dtypes)" for dtype in FORMATS if dtype not in settings.dtypes]
    return [
        *missing,
        f"layers {layers + 1} to {total} (so the text is no meaningful language, and the output "
        "layer weighs more than in the whole model)",
        *dtypes,
        "a longer text and more training steps (run without --quick for everything)",
    ]
