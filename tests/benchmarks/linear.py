"""Linear layers in every format of the weight against PyTorch's, the weight coming from memory.

In a model of many layers a weight has left the cache when its turn comes again. So each call takes
the next of several copies, and the read bandwidth they are held to is that of as many bytes.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks import matmul_nbits
from benchmarks.goals import BF16, FP32, NBITS, READ, judged, linear_goals
from benchmarks.results import DIRECTIONS, Cell, mean_ratio
from benchmarks.tables import Column, Panels, Table, met, wrapped
from benchmarks.timing import measure, reader
from fusewheel.quantization import quantize_int4, quantize_int8
from torch import Tensor
from torch.nn import functional as F

ops = torch.ops.fusewheel
GROUP_SIZE = 32
# Seconds before each competitor's turn, so that no threads of the one before keep a core busy.
PAUSE = 0.03

# What lies in memory for a weight.
STORED: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "float32": lambda weight: (weight,),
    "bfloat16": lambda weight: (weight.bfloat16(),),
    "int8": lambda weight: tuple(quantize_int8(weight)),
    "int4": lambda weight: tuple(quantize_int4(weight, GROUP_SIZE)),
}


@dataclass(frozen=True)
class Layer:
    """One competitor: dtype of x, format of the weight, and what multiplies them."""

    dtype: str
    stored: str
    call: Callable[..., Tensor]

    def takes(self, direction: str) -> bool:
        """Whether there is a gradient of the weight too, where one is asked for."""
        return direction == "fwd" or self.stored in ("float32", "bfloat16")


LAYERS: dict[str, Layer] = {
    FP32: Layer("float32", "float32", F.linear),
    BF16: Layer("bfloat16", "bfloat16", F.linear),
    "linear fp32": Layer("float32", "float32", lambda x, w: ops.linear(x, w, None)),
    "linear bf16": Layer("bfloat16", "bfloat16", lambda x, w: ops.linear(x, w, None)),
    "linear fp32 x bf16": Layer("float32", "bfloat16", lambda x, w: ops.linear(x, w, None)),
    "linear_int8": Layer("float32", "int8", lambda x, *w: ops.linear_int8(x, *w, None, False)),
    "linear_int8 dynamic": Layer(
        "float32", "int8", lambda x, *w: ops.linear_int8(x, *w, None, True)
    ),
    "linear_int4": Layer("float32", "int4", lambda x, *w: ops.linear_int4(x, *w, None, False)),
    "linear_int4 dynamic": Layer(
        "float32", "int4", lambda x, *w: ops.linear_int4(x, *w, None, True)
    ),
}

# Says what the rival reads. Its `call` is not used: a model that has all copies runs in its place.
_RIVAL = Layer("float32", "int4", F.linear)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=[2])
    parser.add_argument(
        "--shapes",
        nargs="*",
        type=_shape,
        default=[(2048, 2048), (576, 1536), (2048, 8192)],
        metavar="NxK",
        help="out x in features (default: 2048x2048 576x1536 2048x8192)",
    )
    parser.add_argument(
        "--rows", nargs="*", type=int, default=[1, 4, 16, 64, 256], help="rows of x"
    )
    parser.add_argument("--directions", nargs="*", choices=DIRECTIONS, default=["fwd"])
    parser.add_argument(
        "--megabytes", type=int, default=256, help="size of all copies of a weight together"
    )


def _shape(text: str) -> tuple[int, int]:
    outputs, inputs = map(int, text.split("x"))
    return outputs, inputs


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    total = options.megabytes * 10**6
    for threads in options.threads:
        torch.set_num_threads(threads)
        read = reader(total)
        for outputs, inputs in options.shapes:
            weight = torch.randn(outputs, inputs) / inputs**0.5
            copies = {name: _copies(store(weight), total) for name, store in STORED.items()}
            rival = _rival(options, weight, len(copies["int4"]))
            for rows, direction in itertools.product(options.rows, options.directions):
                x = torch.randn(rows, inputs)
                layers = {n: layer for n, layer in LAYERS.items() if layer.takes(direction)}
                runs = {READ: read} | {
                    name: _runner(layer, x, copies[layer.stored], direction, turn / len(layers))
                    for turn, (name, layer) in enumerate(layers.items())
                }
                if rival is not None and direction == "fwd":
                    layers[NBITS] = _RIVAL
                    runs[NBITS] = rival.of(rows)
                times = measure(runs, options.seconds, PAUSE)
                if rival is not None and NBITS in times:
                    times[NBITS] /= rival.copies
                roof = times[READ] / total
                for name, layer in layers.items():
                    yield _cell(name, layer, times, rows, weight.shape, direction, roof, copies)


def _rival(
    options: argparse.Namespace, weight: Tensor, copies: int
) -> matmul_nbits.Products | None:
    """ONNX Runtime, if it is there; it cannot be held to fewer instructions."""
    if options.isa is not None or not matmul_nbits.is_there():
        return None
    outputs, inputs = weight.shape
    return matmul_nbits.Products(inputs, outputs, copies, torch.get_num_threads())


def _copies(stored: tuple[Any, ...], total: int) -> list[tuple[Any, ...]]:
    """The weight and as many clones as make up the bytes asked for."""
    needed = -(-total // _bytes(stored))
    return [stored] + [
        tuple(part.clone() if isinstance(part, Tensor) else part for part in stored)
        for _ in range(needed - 1)
    ]


def _bytes(stored: tuple[Any, ...]) -> int:
    return sum(part.nbytes for part in stored if isinstance(part, Tensor))


def _runner(
    layer: Layer, x: Tensor, copies: list[tuple[Any, ...]], direction: str, start: float = 0.0
) -> Callable[[], Any]:
    """`start`: part of the copies to pass over, so that no layer finds another's in a cache."""
    x = x.to(getattr(torch, layer.dtype))
    first = int(start * len(copies))
    weights = itertools.cycle(copies[first:] + copies[:first])
    if direction == "fwd":
        return torch.no_grad()(lambda: layer.call(x, *next(weights)))
    grad = torch.randn(len(x), len(copies[0][0])).to(x.dtype)
    return lambda: _both(layer, x.requires_grad_(), next(weights)[0].requires_grad_(), grad)


def _both(layer: Layer, x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(layer.call(x, weight), (x, weight), grad)


def _cell(
    name: str,
    layer: Layer,
    times: dict[str, float],
    rows: int,
    shape: Sequence[int],
    direction: str,
    seconds_per_byte: float,
    copies: dict[str, list[tuple[Any, ...]]],
) -> Cell:
    outputs, inputs = shape
    # Backward reads the weight again, and writes its gradient.
    passes = 1 if direction == "fwd" else 3
    roof = passes * _bytes(copies[layer.stored][0]) * seconds_per_byte
    baselines = {b: times[b] for b in (FP32, BF16, NBITS) if b in times}
    reached = {b: seconds / times[name] for b, seconds in baselines.items()}
    reached[READ] = roof / times[name]
    goals = linear_goals(name, rows, direction)
    return Cell(
        name=name,
        case=f"{rows}x{inputs}x{outputs}",
        dtype=layer.dtype,
        threads=torch.get_num_threads(),
        direction=direction,
        seconds=times[name],
        baselines=baselines,
        roof=roof,
        flops=passes * 2 * rows * inputs * outputs,
        goals=judged({b: least for b, least in goals.items() if b in reached}, reached),
    )


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each shape, direction and number of threads: speed relative to float32."""
    found: Panels = {}
    for cell in measured:
        rows, _, shape = cell.case.partition("x")
        panel = found.setdefault(
            f"{shape} against {FP32}, {cell.direction}, threads: {cell.threads}", {}
        )
        if cell.name != FP32:
            panel.setdefault(f"M = {rows}", {})[cell.name] = mean_ratio([cell], FP32)
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Medians of interleaved calls in one process. `case`: rows x in features x out features. "
        "Each call takes the next of several copies of the weight, together "
        f"{options.megabytes} MB or more, so that it reads the weight from memory and not from a "
        f"cache. 4-bit weights have groups of {GROUP_SIZE}, 8-bit weights one scale for each out "
        "feature. `fwd+bwd`: with the gradients of x and of the weight. `x fp32` and `x bf16`: how "
        "many times as fast as `F.linear` in that dtype. `of read`: the bytes of the weight (three "
        "times as many with gradients) per second, relative to the read bandwidth of `torch.dot` "
        f"over {options.megabytes} MB, timed in turn with the rest. `MatMulNBits`: ONNX Runtime's "
        f"(accuracy level {matmul_nbits.ACCURACY_LEVEL}, blocks of {matmul_nbits.BLOCK}), all "
        "copies in one model. `x ort`: how many times as fast as that. Where PyTorch uses no "
        "AVX-512, more is wanted of bfloat16."
    )


def _of_rival(cell: Cell) -> str:
    return f"{cell.ratio(NBITS):.2f}" if NBITS in cell.baselines else "-"


TABLE = Table(
    title="Linear layers",
    columns=(
        Column("layer", -19, lambda cell: cell.name),
        Column("case", -14, lambda cell: cell.case),
        Column("x", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("pass", -7, lambda cell: cell.direction),
        Column("ms", 9, lambda cell: f"{cell.seconds * 1e3:.3f}"),
        Column("GFLOP/s", 8, lambda cell: f"{cell.flops / cell.seconds / 1e9:.1f}"),
        Column("x fp32", 6, lambda cell: f"{cell.ratio(FP32):.2f}"),
        Column("x bf16", 6, lambda cell: f"{cell.ratio(BF16):.2f}"),
        Column(
            "x ort", 6, lambda cell: f"{cell.ratio(NBITS):.2f}" if NBITS in cell.baselines else "-"
        ),
        Column("of read", 7, lambda cell: f"{cell.of_roof:.0%}"),
        Column(
            "goals",
            -1,
            lambda cell: ", ".join(
                f"{goal} {'met' if met else 'missed'}" for goal, met in cell.goals.items()
            ),
        ),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
