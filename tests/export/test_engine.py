"""``fusewheel.export(engine=True)``: an exported program made of programs of the engine."""

from __future__ import annotations

import io

import fusewheel
import pytest
import torch
from nightly import NIGHTLY
from tiny_decoder import TinyDecoder

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


@pytest.fixture(scope="module")
def exported() -> tuple[TinyDecoder, torch.export.ExportedProgram]:
    model = TinyDecoder().eval()
    length = torch.export.Dim("length", min=2, max=64)
    program = fusewheel.export(
        model, (tokens(7),), dynamic_shapes={"tokens": {1: length}}, engine=True
    )
    return model, program


def tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 48, (2, length))


def assert_right(call, model: TinyDecoder) -> None:
    with torch.no_grad():
        for length in (7, 12):
            ids = tokens(length)
            torch.testing.assert_close(call(ids), model(ids))


def test_one_program_is_left(exported):
    model, program = exported
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert calls.count(torch.ops.fusewheel.run.default) == 1 and len(calls) < 6
    assert_right(program.module(), model)


def test_saved(exported):
    model, program = exported
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer)
    assert_right(loaded.module(), model)
    assert_right(loaded.run_decompositions().module(), model)


@NIGHTLY
@pytest.mark.slow
def test_package(exported, tmp_path):
    model, program = exported
    path = str(tmp_path / "decoder.pt2")
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    assert_right(torch._inductor.aoti_load_package(path), model)


def test_a_program_that_was_exported_before_is_not_changed():
    model = TinyDecoder().eval()
    plain = torch.export.export(model, (tokens(7),))
    before = str(plain.graph)
    program = fusewheel.export(plain, engine=True)
    assert str(plain.graph) == before and "fusewheel.run" in str(program.graph)
    with torch.no_grad():
        ids = tokens(7)
        torch.testing.assert_close(program.module()(ids), model(ids))


def test_it_cannot_be_trained():
    model = TinyDecoder().eval()
    with pytest.raises(ValueError, match="engine=True is for inference"):
        fusewheel.export(model, (tokens(7),), engine=True, training=True)
    program = fusewheel.export(model, (tokens(7),), engine=True)
    with pytest.raises(RuntimeError, match="run: a program records no gradient"):
        program.module()(tokens(7))
