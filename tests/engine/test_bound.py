"""Programs that hold their weights: same results, changes are seen, and what is held is freed."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engine.programs import WIDTH, gated, gated_inputs, gated_reference, layer, layer_inputs
from engine.test_program import assert_equal
from fusewheel.engine import bind, can_bind
from fusewheel.engine import bound as names
from torch import Tensor

pytestmark = pytest.mark.skipif(
    not can_bind(),
    reason="torch older than 2.11 lets no tensor hold others, so models hand all weights over",
)
PROGRAM = gated()


def run(program: Tensor, *inputs: Tensor) -> list[Tensor]:
    found: list[Tensor] = torch.ops.fusewheel.run(program, list(inputs), PROGRAM.outputs)
    return found


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_any_number_of_last_inputs(held: int) -> None:
    inputs = gated_inputs()
    bound = bind(PROGRAM.code, inputs[3 - held :])
    assert_equal(run(bound, *inputs[: 3 - held]), PROGRAM(*inputs))


def test_layers_of_one_row() -> None:
    program, inputs = layer(), layer_inputs()
    bound = bind(program.code, inputs[1:])
    for _ in range(2):
        found = torch.ops.fusewheel.run(bound, inputs[:1], program.outputs)
        assert_equal(found, program(*inputs))


def test_changes_of_a_weight_are_seen() -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    run(bound, x)
    gate.mul_(2)
    assert_equal(run(bound, x), PROGRAM(x, gate, up))
    # The second one lies in memory in another order, so it is copied.
    for transposed in (False, True, False):
        data = torch.randn(WIDTH, WIDTH)
        up.data = data.t() if transposed else data
        assert_equal(run(bound, x), PROGRAM(x, gate, up))


@pytest.mark.parametrize("copied", [False, True])
def test_a_weight_that_requires_a_gradient_later(copied: bool) -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    program = bound.clone() if copied else bound
    run(program, x)
    up.requires_grad_()
    with pytest.raises(RuntimeError, match="run: a program records no gradient, and an input or w"):
        run(program, x)
    with torch.no_grad():
        run(program, x)
    up.requires_grad_(False)
    run(program, x)


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(16, dtype=torch.uint8, device="meta"),
        torch.zeros(1, dtype=torch.uint8).expand(16),
        torch.zeros(16),
    ],
    ids=["without memory", "shorter", "other dtype"],
)
def test_other_tensors_are_not_read_as_names(other: Tensor, monkeypatch) -> None:
    _, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    up.requires_grad_()
    read: list[Tensor] = []
    monkeypatch.setattr(names, "_number", lambda name: read.append(name) or 0)
    assert not names.has_trained_weights(other) and not read
    del bound


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.randn(WIDTH, WIDTH - 1), r"inputs\[2\] must have shape \[8, 8\], got \[8, 7\]"),
        (torch.randn(WIDTH * WIDTH), r"inputs\[2\] must have 2 dimensions, got 1"),
        (torch.randn(WIDTH, WIDTH).double(), r"inputs\[2\] must be float32, got float64"),
    ],
    ids=["shape", "dimensions", "dtype"],
)
def test_a_weight_that_no_longer_fits(data: Tensor, message: str) -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    up.data = data
    with pytest.raises(RuntimeError, match=message):
        run(bound, x)


def test_a_weight_whose_memory_is_gone() -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    up.resize_(0)
    with pytest.raises(RuntimeError, match=r"inputs\[2\] must have 2 dimensions"):
        run(bound, x)


def test_weights_live_as_long_as_the_result() -> None:
    x, gate, up = gated_inputs()
    memory = weakref.ref(gate.untyped_storage())
    expected = gated_reference(x, gate, up)
    bound = bind(PROGRAM.code, [gate, up])
    held = weakref.ref(gate)
    del gate, up
    gc.collect()
    assert_equal(run(bound, x), expected)
    del bound
    gc.collect()
    assert held() is None and memory() is None


def test_a_copy_of_the_result_holds_nothing() -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    copy, saved = bound.clone(), pickle.dumps(bound)
    assert_equal(run(copy, x), gated_reference(x, gate, up))
    del bound
    for other in (copy, pickle.loads(saved)):
        with pytest.raises(RuntimeError, match="run: program names weights that are not held"):
            run(other, x)


def test_another_process_knows_no_names(tmp_path) -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    torch.save([bound, x, PROGRAM.outputs], tmp_path / "bound.pt")
    lines = (
        "import sys, torch, fusewheel",
        "code, x, outputs = torch.load(sys.argv[1])",
        "torch.ops.fusewheel.run(code, [x], outputs)",
    )
    command = [sys.executable, "-c", "; ".join(lines), str(tmp_path / "bound.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "names weights that are not held" in done.stderr


def test_wrong_arguments() -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    with pytest.raises(RuntimeError, match=r"must be the 1 tensors of the program without its"):
        run(bound, x, gate, up)
    with pytest.raises(RuntimeError, match="bind: program must hold no weights yet"):
        bind(bound, [x])
    with pytest.raises(RuntimeError, match="which has 3, got 4"):
        bind(PROGRAM.code, [x, x, gate, up])
    with pytest.raises(RuntimeError, match="bind: weights must require no gradient"):
        bind(PROGRAM.code, [gate, up.requires_grad_()])
    with pytest.raises(RuntimeError, match="program must be a contiguous uint8 tensor"):
        bind(x, [gate])


def test_threads() -> None:
    x, gate, up = gated_inputs()
    bound = bind(PROGRAM.code, [gate, up])
    expected = PROGRAM(x, gate, up)

    def call(_: int) -> bool:
        own = bind(PROGRAM.code, [gate, up])
        found = [*run(bound, x), *run(own, x)]
        return all(map(torch.equal, found, [*expected, *expected]))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(40)))
