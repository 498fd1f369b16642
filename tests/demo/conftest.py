"""One run of the demo on a tiny random model, shared by all tests that need a real one."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo.examples import MISSING_BACKEND, PROMPT_TOKENS
from fusewheel._core.process import Child
from fusewheel.demo import measure
from fusewheel.demo.models.weights import truncate, write_bundle
from fusewheel.demo.progress import Progress
from fusewheel.demo.run import run_demo
from fusewheel.demo.settings import BATCH, Settings
from fusewheel.demo.show.report import Report
from tiny_gguf import load_gguf, small_llama, write_gguf

SEQUENCE = 8


@pytest.fixture(scope="session")
def copies() -> Iterator[None]:
    """Worker processes are copies of this one: a new one imports for many seconds what it needs."""
    import transformers  # noqa: F401

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "Child", functools.partial(Child, method="fork"))
        yield


@pytest.fixture(scope="session")
def tiny_settings() -> Settings:
    return Settings(
        # aot_eager compiles in a second what Inductor takes many for.
        modes=("eager", MISSING_BACKEND, "aot_eager"),
        dtypes=("fp32", "int4"),
        threads=1,
        repeats=2,
        train_repeats=2,
        new_tokens=5,
        llama_cpp=False,
    )


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A bundle like the one made from the real weights, and the facts that come with it."""
    folder = tmp_path_factory.mktemp("bundle")
    path = folder / "tiny.gguf"
    write_gguf(path, small_llama(layers=3))
    model = load_gguf(path)
    truncate(model, 2)
    prompt = [7 * index % 97 for index in range(PROMPT_TOKENS)]
    training = [5 * index % 97 for index in range(BATCH * SEQUENCE)]
    write_bundle(folder, model, path, prompt, training)
    facts = {
        "name": "tiny",
        "layers": 2,
        "layers_of_model": 3,
        "prompt_tokens": PROMPT_TOKENS,
        "sequence": SEQUENCE,
        "end_of_text": 2,
    }
    return folder, facts


@pytest.fixture(scope="session")
def tiny_run(
    copies: None, tiny_settings: Settings, tiny_bundle: tuple[Path, dict[str, Any]]
) -> tuple[Report, str]:
    """The report of the run, and the progress it printed."""
    folder, facts = tiny_bundle
    stream = io.StringIO()
    report = run_demo(tiny_settings, folder, facts, Progress(stream))
    return report, stream.getvalue()
