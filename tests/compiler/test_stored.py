"""What captured graphs became is kept in files: the same numbers from these, and when not."""

from __future__ import annotations

import copy
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fusewheel
import numpy
import pytest
import torch
import torch.nn.functional as F
from compiler.test_caches import OPTIONS, build
from compiler.test_registry import OWN
from fusewheel._torch.fx import module_of
from fusewheel.compiler import register, unregister
from fusewheel.compiler.cost import processor, rates
from fusewheel.compiler.entry import dynamo, stored
from fusewheel.compiler.entry.direct.capture import Capture
from fusewheel.compiler.store import files, key
from fusewheel.compiler.store.names import Unnamed, name_of, named
from fusewheel.compiler.store.record import Unstorable, graph_of, record_of
from fusewheel.engine import step_operators
from fusewheel.engine.growing import append
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx import Graph, GraphModule

KINDS = "Llama", "Gemma3Text", "Mixtral", "GPT2"


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the files, which is empty."""
    monkeypatch.setenv("FUSEWHEEL_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an item for each graph that was compiled."""
    found: list[int] = []
    own = dynamo.compile_graph

    def compile_graph(gm: GraphModule, *args: Any, **kwargs: Any) -> Any:
        found.append(len(gm.graph.nodes))
        return own(gm, *args, **kwargs)

    monkeypatch.setattr(dynamo, "compile_graph", compile_graph)
    return found


def logits(model: Any) -> list[Tensor]:
    """Of a text's next tokens."""
    ids = torch.arange(3, 12)[None]
    more = {"output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 4}
    return list(model.generate(ids, **{**OPTIONS, **more}).logits)


def texts(model: Any, **options: Any) -> list[Tensor]:
    """The logits of a frozen copy of a model."""
    counters.clear()
    found = logits(fusewheel.freeze(copy.deepcopy(model), options={"inner": "engine", **options}))
    assert not counters["stats"]["unique_graphs"]  # of Dynamo
    return found


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_second_model_is_not_compiled(kind: str, room: Path, compiled: list[int]) -> None:
    model = build(kind)
    first = texts(model)
    counts, graphs = counters["fusewheel"].copy(), len(compiled)
    assert graphs >= 2 and graphs == len(list(room.iterdir()))
    assert same(texts(model), first)
    assert len(compiled) == graphs and counters["fusewheel"] == counts


def test_another_process_finds_the_graphs(room: Path) -> None:
    code = """
import logging, sys
logging.basicConfig(stream=sys.stderr, format="%(message)s")
logging.getLogger("fusewheel.compiler").setLevel(logging.INFO)
from compiler.test_stored import build, texts
import torch
torch.manual_seed(5)
print([part.sum().item() for part in texts(build("Llama"))])
"""
    run = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    first, second = (
        subprocess.run(run, env=env, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert first.stdout == second.stdout
    said = "read from a file"
    assert first.stderr.count(said) == 0 and second.stderr.count(said) == 2


def test_weights_are_those_of_the_model(compiled: list[int]) -> None:
    texts(build("Llama"))
    other = build("Llama")
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.25)
    graphs = len(compiled)
    found = texts(other)
    assert len(compiled) == graphs
    for own, expected in zip(found, logits(other), strict=True):
        torch.testing.assert_close(own, expected)


def test_quantized_weights(compiled: list[int]) -> None:
    model = build("Llama")
    fusewheel.quantize_(model, "int8")
    first, graphs = texts(model), len(compiled)
    assert same(texts(model), first) and len(compiled) == graphs == 2


def in_bfloat16(model: Any) -> None:
    model.bfloat16()


def with_other_eps(model: Any) -> None:
    for layer in model.model.layers:
        layer.input_layernorm.variance_epsilon = 0.5


def with_bias(model: Any) -> None:
    for layer in model.model.layers:
        gate = layer.mlp.gate_proj
        gate.bias = torch.nn.Parameter(torch.ones(gate.out_features))


def with_tied_projections(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight = layer.self_attn.k_proj.weight


def with_other_strides(model: Any) -> None:
    for layer in model.model.layers:
        weight = layer.mlp.up_proj.weight
        weight.data = weight.data.T.contiguous().T


CHANGES = in_bfloat16, with_other_eps, with_bias, with_tied_projections, with_other_strides


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_is_compiled(change: Callable[[Any], None], compiled: list[int]) -> None:
    model = build("Llama", num_hidden_layers=2)
    texts(model)
    change(model)
    graphs = len(compiled)
    found = texts(model)
    assert len(compiled) == graphs + 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSEWHEEL_CACHE", "0")
        assert same(found, texts(model))


def test_options_are_told_apart(compiled: list[int]) -> None:
    model = build("Llama")
    texts(model, inner="none")
    texts(model, inner="engine")
    assert len(compiled) == 4


def test_switched_off_pattern(compiled: list[int]) -> None:
    model = build("Llama")
    texts(model)
    with fusewheel.compiler.disable("rms_norm"):
        texts(model)
        assert "rms_norm" not in counters["fusewheel"]
    assert len(compiled) == 4


def test_threads(compiled: list[int]) -> None:
    model, before = build("Llama"), torch.get_num_threads()
    texts(model)
    torch.set_num_threads(before + 1)
    try:
        texts(model)
    finally:
        torch.set_num_threads(before)
    assert len(compiled) == 4


def test_one_of_several_processes(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have to compile the same, which depends on no measurement."""
    model = build("Llama")
    texts(model)
    monkeypatch.setattr(rates, "is_distributed", lambda: True)
    texts(model)
    assert len(compiled) == 4


def test_facts_of_the_processor(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Llama")
    texts(model)
    monkeypatch.setattr(processor, "_maker", lambda: "Nobody")
    texts(model)
    assert len(compiled) == 4


def test_new_steps_of_programs(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Llama")
    texts(model)
    more = {**step_operators(), "mylib::scale.": "Tf"}  # as `add_step` does for the whole process
    monkeypatch.setattr(key, "step_operators", lambda: more)
    texts(model)
    assert len(compiled) == 4


def test_pattern_of_another_package(
    room: Path, compiled: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """It may change without a change of fusewheel."""
    register(OWN)
    try:
        with caplog.at_level(logging.INFO, "fusewheel.compiler"):
            texts(build("Llama"))
    finally:
        unregister(OWN.name)
    assert "pattern 'own' is of another package" in caplog.text and not room.exists()


def damaged(data: bytes) -> Iterator[bytes]:
    yield b""
    yield b"no file of torch"
    yield data[: len(data) // 2]
    middle = data.index(b'"op"')
    yield data[:middle] + b"!!!!" + data[middle + 4 :]
    yield data.replace(b"fusewheel::", b"futherwheel:")


def test_damaged_files_are_written_again(room: Path, compiled: list[int]) -> None:
    model = build("Llama")
    first = texts(model)
    whole = {file: file.read_bytes() for file in room.iterdir()}
    for number in range(5):
        for file, data in whole.items():
            file.write_bytes(list(damaged(data))[number])
        compiled.clear()
        assert same(texts(model), first) and len(compiled) == 2
        compiled.clear()
        assert same(texts(model), first) and not compiled


def test_nothing_is_kept(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWHEEL_CACHE", "0")
    texts(build("Llama"))
    assert files.folder() is None and not room.exists()


def test_folder_that_cannot_be_made(room: Path, caplog: pytest.LogCaptureFixture) -> None:
    room.write_text("a file")
    with caplog.at_level(logging.INFO, "fusewheel.compiler"):
        texts(build("Llama"))
    assert "is not written" in caplog.text


def test_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUSEWHEEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.folder() == tmp_path / "fusewheel"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert files.folder() == tmp_path / ".cache" / "fusewheel"


def test_folder_that_nobody_may_change(room: Path, compiled: list[int]) -> None:
    """It may be a part of an image."""
    first = texts(model := build("Llama"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "utime", refuse)
        assert same(texts(model), first) and len(compiled) == 2


def test_folder_that_nobody_may_read(compiled: list[int]) -> None:
    first = texts(model := build("Llama"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", refuse)
        assert same(texts(model), first) and len(compiled) == 4


@pytest.mark.parametrize("step", ["key_of", "record_of"])
def test_error_in_keeping(
    step: str, room: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is captured and compiled all the same."""
    monkeypatch.setattr(stored, step, refuse)
    texts(build("Llama"))
    assert "is not kept" in caplog.text and not room.exists()


@pytest.mark.parametrize("where", ["lower.engine.find_regions", "match.rewrite.check"])
def test_what_an_error_left_unchanged(
    where: str, room: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have more memory."""
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT", raising=False)
    monkeypatch.setattr(f"fusewheel.compiler.{where}", refuse)
    with caplog.at_level(logging.INFO, "fusewheel.compiler"):
        texts(build("Llama"))
    assert "an error left a part of it" in caplog.text and not room.exists()


def refuse(*_: Any, **__: Any) -> None:
    raise PermissionError("it belongs to somebody else")


def test_oldest_files_are_deleted(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST", 3)
    for number in range(5):
        files.write(f"key{number}", {"number": number})
        os.utime(room / f"key{number}.fusewheel-graph", (number, number))
        files.read("key0")  # which is used again and again
    (room / "of the user.graph").touch()
    files.write("key5", {"number": 5})
    assert {file.stem for file in room.iterdir()} == {"key0", "key4", "key5", "of the user"}


def test_inference_mode(compiled: list[int]) -> None:
    model = build("Llama")
    first = texts(model)
    with torch.inference_mode():
        assert same(texts(model), first)
    assert same(texts(model), first) and len(compiled) == 2


def key_of_sum(
    rows: int = 9, *, width: int = 4, needs: Callable[[Any], bool] | None = None, **options: Any
) -> str:
    """The key of a small graph for any number of rows, under a condition on that number."""
    capture = Capture({})
    with capture.fakes.mode:
        size = capture.fakes.size("rows", rows)
        x = capture.argument("x", torch.empty(size, width, **options))
        if needs is not None:
            assert needs(size)
        with capture:
            found = x + 1
    return key.key_of(capture.graph([found]))


def test_what_a_key_says_of_tensors() -> None:
    keys = [
        key_of_sum(),
        key_of_sum(width=5),
        key_of_sum(dtype=torch.bfloat16),
        key_of_sum(requires_grad=True),
    ]
    assert keys[0] == key_of_sum() and len(set(keys)) == 4


def test_what_a_key_says_of_symbols() -> None:
    """Not the size itself: a prompt of another length takes the same program."""
    assert key_of_sum(9) == key_of_sum(12) != key_of_sum(200)
    keys = {key_of_sum(), key_of_sum(needs=lambda n: n > 5), key_of_sum(needs=lambda n: n > 6)}
    assert len(keys) == 3


def test_arguments_without_a_text_that_says_all() -> None:
    for argument in (numpy.zeros(3), object(), torch.Generator()):
        graph = Graph()
        graph.output(graph.call_function(torch.tensor, (argument,)))
        with pytest.raises(Unnamed, match=type(argument).__name__):
            key.key_of(module_of(graph))


def round_trip(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call that was kept."""
    graph = Graph()
    graph.output(graph.call_function(torch.add, args, kwargs))
    record = record_of(module_of(graph), 0)
    module, _ = graph_of(record, [])
    node = next(iter(module.graph.nodes))
    return node.args, node.kwargs


def test_arguments_are_kept() -> None:
    args = (
        *(1, 2.5, math.inf, True, None, "text", ..., (1, (2, "a")), [1, [2]], {"a": (1,), 2: "b"}),
        *(slice(None, 3, 2), torch.float32, torch.strided, torch.contiguous_format),
        torch.device("cpu"),
    )
    found, more = round_trip(*args, alpha=(1, [2]))
    assert found == args and [type(part) for part in found[:5]] == [
        int,
        float,
        float,
        bool,
        type(None),
    ]
    assert type(found[7]) is tuple and more == {"alpha": (1, [2])}


def test_arguments_that_no_file_holds() -> None:
    for argument in (1j, torch.Generator(), torch.ones(1)):
        with pytest.raises(Unstorable, match=type(argument).__name__):
            round_trip(argument)


def test_functions_by_name() -> None:
    functions = (
        *(torch.matmul, F.linear, F.silu, F.scaled_dot_product_attention, torch.special.expit),
        *(torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.ops.fusewheel.run.default),
        *(math.sqrt, append),
    )
    for function in functions:
        assert named(name_of(function)) is function


def test_functions_without_a_name() -> None:
    for function in (lambda: None, test_folder, room):
        with pytest.raises(Unnamed, match="no name"):
            name_of(function)
    with pytest.raises(Unnamed, match="there is no"):
        named(("operator", "fusewheel::nothing", ""))
    for module, path in (("subprocess", "run"), ("torch", "os.system")):
        with pytest.raises(Unnamed, match=r"no name|there is no"):
            named(("function", module, path))
