"""What a quick run leaves out when the machine is slow."""

from __future__ import annotations

import dataclasses
import io

from fusewheel.demo.progress import Progress
from fusewheel.demo.run import run_demo


def test_a_run_out_of_time_leaves_training_out(copies, tiny_settings, tiny_bundle):
    folder, facts = tiny_bundle
    settings = dataclasses.replace(
        tiny_settings, modes=("eager",), dtypes=("fp32",), repeats=9, quick=True, time_limit_s=0.001
    )
    report = run_demo(settings, folder, facts, Progress(io.StringIO()))
    (result,) = report.results
    assert set(result.phases) == {"prefill", "decode"}
    assert len(result.phases["decode"].seconds) == 3
    assert "fp32 training: no time left on this machine" in report.left_out
    assert any(what.startswith("bf16") for what in report.left_out)
    assert not report.failures
