"""Results made up for the tests of what is computed from them."""

from __future__ import annotations

from typing import Any

from fusewheel.compiler.entry import dynamo
from fusewheel.demo.models.session import Session, SessionSpec
from fusewheel.demo.settings import Settings
from fusewheel.demo.show.checks import run_checks
from fusewheel.demo.show.report import Report
from fusewheel.demo.show.results import Labels, ModeResult, PhaseResult, rows

# Of the tiny model that the whole run uses.
PROMPT_TOKENS = 12
MISSING_BACKEND = "no_such_backend"

SETTINGS = Settings(dtypes=("fp32",), new_tokens=5)


def example(mode: str, dtype: str = "fp32", speed: float = 1.0) -> ModeResult:
    """A mode that is `speed` times as fast as eager."""
    phases = {
        phase: PhaseResult(
            first_s=9.0 + seconds / speed,
            graphs=0 if mode == "eager" else 1,
            graph_breaks=0,
            seconds=[seconds / speed] * 3,
        )
        for phase, seconds in (("prefill", 0.5), ("decode", 2.0), ("train", 4.0))
    }
    return ModeResult(
        dtype=dtype,
        mode=mode,
        phases=phases,
        peak_bytes={"generation": 100 * 2**20, "training": int(400 / speed) * 2**20},
        tokens=[3, 1, 4, 1, 5],
        losses=[2.5, 2.4],
    )


def example_report(*results: ModeResult, settings: Settings = SETTINGS) -> Report:
    """The report of these results."""
    return Report(
        settings=settings,
        model={"name": "tiny", "layers": 2, "layers_of_model": 2},
        machine={"torch": "2.13.0", "threads": 2, "cpu": "some CPU"},
        results=results,
        rows=rows(settings, results, Labels(256, 4, 128)),
        checks=run_checks(settings, results),
        text="some text",
    )


def open_without_generated_code(spec: SessionSpec) -> Session:
    """A session whose rewritten graphs run as they are: compiling their code takes a minute."""

    def inner(*_: Any) -> Any:
        return lambda gm, example_inputs: gm.forward

    dynamo._inner = inner
    return spec.open()
