"""The operator `run` in the parts of PyTorch: fakes, gradients, TorchScript, export, packages."""

from __future__ import annotations

import io
import weakref

import pytest
import torch
from engine.programs import WIDTH, gated, gated_inputs, gated_reference, joined
from engine.test_program import assert_equal
from fusewheel.engine import ProgramWriter, add_step
from nightly import NIGHTLY
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
PROGRAM = gated()


class Gated(torch.nn.Module):
    """The program with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("program", PROGRAM.code)
        for name, weight in zip(("gate", "up"), gated_inputs()[1:], strict=True):
            self.register_buffer(name, weight)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.ops.fusewheel.run(self.program, [x, self.gate, self.up], PROGRAM.outputs)
        return found[0] * 2 + found[1]

    def expected(self, x: Tensor) -> Tensor:
        hidden, total = gated_reference(x, self.gate, self.up)
        return hidden * 2 + total


def assert_right(call, module: Gated, rows=(3, 6)) -> None:
    for count in rows:
        x = torch.randn(count, WIDTH)
        torch.testing.assert_close(call(x), module.expected(x))


def test_fake_has_shapes_dtypes_and_strides():
    program, inputs = joined(), [torch.randn(1, 2, 5, 4), torch.randn(1, 1, 2, 4)]
    fakes = torch.ops.fusewheel.run(
        program.code.to("meta"), [t.to("meta") for t in inputs], program.outputs
    )
    for fake, real in zip(fakes, program(*inputs), strict=True):
        assert (fake.dtype, fake.shape, fake.stride()) == (real.dtype, real.shape, real.stride())


@pytest.mark.parametrize("outputs", [[], [3], [1, 0, 0, 0, 8, 1], [0, 1, 99, 0], [0, 1, 6, 1, 0]])
def test_fake_of_other_numbers(outputs):
    with pytest.raises(RuntimeError, match="run: outputs must be what the program says"):
        torch.ops.fusewheel.run(
            PROGRAM.code.to("meta"), [t.to("meta") for t in gated_inputs()], outputs
        )


def test_opcheck():
    inputs = gated_inputs()
    for tests in ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"):
        torch.library.opcheck(
            torch.ops.fusewheel.run.default,
            (PROGRAM.code, inputs, PROGRAM.outputs),
            test_utils=tests,
        )


def test_a_gradient_is_refused():
    inputs = gated_inputs()
    inputs[1].requires_grad_()
    with pytest.raises(RuntimeError, match="run: a program records no gradient"):
        PROGRAM(*inputs)
    with torch.no_grad():
        assert_equal(PROGRAM(*inputs), gated_reference(*inputs))
    with torch.inference_mode():
        assert_equal(PROGRAM(*inputs), gated_reference(*inputs))
    refused = pytest.raises(RuntimeError, match="run: a program records no gradient")
    with torch.autograd.forward_ad.dual_level(), refused:
        PROGRAM(*gated_inputs())


def test_torchscript():
    module = Gated()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, torch.randn(3, WIDTH)), buffer)
    buffer.seek(0)
    assert_right(torch.jit.load(buffer), module)


@pytest.fixture(scope="module")
def exported() -> tuple[Gated, torch.export.ExportedProgram]:
    module = Gated()
    rows = torch.export.Dim("rows", min=2)
    shapes = {"x": {0: rows}}
    return module, torch.export.export(module, (torch.randn(3, WIDTH),), dynamic_shapes=shapes)


def test_export(exported):
    module, program = exported
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    assert_right(torch.export.load(buffer).module(), module)
    assert_right(program.run_decompositions().module(), module)


# Before a change `export/test_engine.py` compiles a package with a program in it.
@NIGHTLY
@pytest.mark.slow
def test_package(exported, tmp_path):
    module, program = exported
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "gated.pt2")
    )
    with torch.no_grad():
        assert_right(torch._inductor.aoti_load_package(path), module)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "fusewheel"])
def test_compiled(backend):
    module = Gated()
    with torch.no_grad():
        assert_right(torch.compile(module, backend=backend, dynamic=True, fullgraph=True), module)


class Piece(bytearray):
    """Memory that can be referenced weakly."""


def test_values_are_freed_after_their_last_use() -> None:
    pieces: list[weakref.ref[Piece]] = []
    alive: list[int] = []

    def following(x: Tensor) -> Tensor:
        alive.append(sum(piece() is not None for piece in pieces))
        piece = Piece(12)
        pieces.append(weakref.ref(piece))
        return torch.frombuffer(piece, dtype=torch.float32)

    with torch.library._scoped_library("steps_that_count", "DEF") as library:
        library.define("following(Tensor x) -> Tensor")
        library.impl("following", following, "CPU")
        step = torch.ops.steps_that_count.following.default
        add_step(step)
        writer = ProgramWriter()
        values = [writer.input(torch.float32, (3,), (1,))]
        for _ in range(4):
            values.append(writer.result(torch.float32, (3,), (1,)))
            writer.step(step, (values[-2],), (values[-1],))
        writer.finish([values[-1]])(torch.ones(3))
    assert alive == [0, 1, 1, 1]
