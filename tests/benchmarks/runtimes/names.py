"""The runtimes that take part: what each is called, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.goals import EAGER, INDUCTOR, LLAMA_CPP, ORT_FP32, ORT_INT4

OPENVINO, TORCHAO = "openvino", "torchao-int4"


@dataclass(frozen=True)
class Kind:
    """One runtime with one kind of weights.

    Attributes:
        module: in `benchmarks.runtimes`, which loads it.
        weights: their format, as the table shows it.
        package: of Python, without which it cannot run; empty for what is always there.
        options: what `module` reads.
    """

    module: str
    weights: str
    package: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def _torch(weights: str, backend: str | None, package: str = "", **options: Any) -> Kind:
    return Kind("with_torch", weights, package, {"backend": backend, **options})


RUNTIMES: dict[str, Kind] = {
    EAGER: _torch("fp32", None),
    INDUCTOR: _torch("fp32", "inductor"),
    "ours-fp32": _torch("fp32", "fusewheel"),
    "ours-bf16": _torch("bf16", "fusewheel", dtype="bfloat16"),
    "ours-int8": _torch("int8", "fusewheel", quantize={"kind": "int8"}),
    "ours-int4": _torch("int4", "fusewheel", quantize={"kind": "int4"}),
    "ours-int4-int8": _torch(
        "int4 x int8", "fusewheel", quantize={"kind": "int4", "dynamic": True}
    ),
    "ours-gguf": _torch("Q4_1", "fusewheel", gguf=True),
    ORT_FP32: Kind("with_onnx", "fp32", "onnxruntime_genai", {"precision": "fp32"}),
    ORT_INT4: Kind("with_onnx", "int4 x int8", "onnxruntime_genai", {"precision": "int4"}),
    LLAMA_CPP: Kind("with_llama", "Q4_1 x int8", "xllamacpp"),
    OPENVINO: Kind("with_openvino", "Q4_1 x int8", "openvino_genai"),
    TORCHAO: _torch("int4, bf16", "inductor", "torchao", dtype="bfloat16", torchao=True),
}
