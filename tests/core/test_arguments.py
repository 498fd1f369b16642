"""Functions that take a model say so when they are given something else."""

from __future__ import annotations

from types import SimpleNamespace

import fusewheel
import pytest

OF_A_MODEL = ("explain", "export", "freeze", "patch", "quantize_", "unpatch")


@pytest.mark.parametrize("name", OF_A_MODEL)
@pytest.mark.parametrize("given", [None, 3, SimpleNamespace()], ids=["None", "int", "object"])
def test_what_is_no_model_is_named(name: str, given: object):
    with pytest.raises(TypeError, match=f"^{name}: model must be .*, got {type(given).__name__}$"):
        getattr(fusewheel, name)(given)


def test_what_is_no_path_is_named():
    with pytest.raises(TypeError, match=r"^load_gguf: path must be a path, got NoneType$"):
        fusewheel.load_gguf(None)


def test_a_filter_that_cannot_be_called_is_named():
    from torch import nn

    with pytest.raises(TypeError, match=r"^quantize_: filter_fn must be a function, got int$"):
        fusewheel.quantize_(nn.Sequential(nn.Linear(32, 32)), filter_fn=3)


def test_dir_lists_what_the_package_is_for_and_nothing_else():
    assert set(dir(fusewheel)) == {*fusewheel.__all__, "nn", "transformers"}
    assert {"compiler", "load_gguf", "rms_norm"} <= set(dir(fusewheel))
