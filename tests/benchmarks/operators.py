"""Every declared operator against eager PyTorch, Inductor and the speed of copying memory.

One process, competitors interleaved, medians. The copy roof is the time `clone` into a warm buffer
needs for the bytes the operator must move; 100 % of it means nothing but traffic is left.

    nox -s bench -- --operators rms_norm silu_mul --dtypes float32 bfloat16 --threads 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fusewheel
import torch
from fusewheel._operator import Make, Operator
from torch import Tensor

# A fresh large output costs page faults, more than the kernels do: keep freed memory.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}


@dataclass(frozen=True)
class Row:
    """One cell of the benchmark; times are medians in seconds."""

    operator: str
    case: str
    dtype: str
    threads: int
    backward: bool
    eager: float
    inductor: float
    fusewheel: float
    copy_roof: float

    def text(self) -> str:
        direction = "fwd+bwd" if self.backward else "fwd"
        return (
            f"{self.operator:10} {self.case:16} {self.dtype:9} {self.threads:2} {direction:8}"
            f"{self.fusewheel * 1e3:10.3f}{self.eager / self.fusewheel:9.2f}"
            f"{self.inductor / self.fusewheel:10.2f}{self.copy_roof / self.fusewheel:8.0%}"
        )


HEADER = (
    f"{'operator':10} {'case':16} {'dtype':9} {'th':2} {'':8}"
    f"{'ms':>10}{'x eager':>9}{'x Induct.':>10}{'of roof':>8}"
)


def measure(competitors: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median time of each, called in turn; `seconds` is for one competitor."""
    for run in competitors.values():
        run()
        run()
    start = time.perf_counter()
    for run in competitors.values():
        run()
    once = (time.perf_counter() - start) / len(competitors)
    # A block of calls is one sample, so that the clock does not matter to small operators.
    block = max(1, int(1e-3 / max(once, 1e-9)))
    rounds = max(5, min(200, int(seconds / (once * block))))
    samples: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, run in competitors.items():
            start = time.perf_counter()
            for _ in range(block):
                run()
            samples[name].append((time.perf_counter() - start) / block)
    return {name: statistics.median(times) for name, times in samples.items()}


def runner(
    function: Callable[..., Any], operator: Operator, arguments: tuple, backward: bool
) -> Callable[[], Any]:
    if not backward:
        inputs = tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments)

        def forward() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return forward
    leaves = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]

    def outputs() -> list[Tensor]:
        # An auxiliary output (rstd) carries a gradient only in second derivatives.
        result = function(*arguments)
        everything = result if isinstance(result, tuple) else (result,)
        return [o for i, o in enumerate(everything) if i not in operator.auxiliary]

    seeds = [torch.randn_like(o) for o in outputs()]
    return lambda: torch.autograd.grad(outputs(), leaves, seeds)


def traffic(operator: Operator, arguments: tuple, backward: bool) -> int:
    """Bytes that must move: inputs read and outputs written once; backward likewise."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    result = operator.fake(*arguments)
    outputs = result if isinstance(result, tuple) else (result,)
    read, written = (sum(t.numel() * t.element_size() for t in ts) for ts in (tensors, outputs))
    gradients = sum(t.numel() * t.element_size() for t in tensors if t.requires_grad)
    return read + written + ((written + read + gradients) if backward else 0)


def copy_seconds_per_byte() -> float:
    source, target = torch.randn(2**24), torch.empty(2**24)
    times = measure({"copy": lambda: target.copy_(source)}, 0.5)
    return times["copy"] / (2 * source.numel() * source.element_size())


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    declared = {o.name: o for o in fusewheel.ops.operators() if o.benchmarks is not None}
    unknown = set(options.operators) - set(declared)
    if unknown:
        raise SystemExit(f"no such operator: {sorted(unknown)}; there are {sorted(declared)}")
    print(HEADER)
    for threads in options.threads:
        torch.set_num_threads(threads)
        roof = copy_seconds_per_byte()
        for name in options.operators or declared:
            operator = declared[name]
            for dtype_name in options.dtypes:
                make = Make(getattr(torch, dtype_name), requires_grad=True)
                for case, arguments in operator.benchmarks(make):
                    torch._dynamo.reset()
                    functions = {
                        "eager": operator.reference,
                        "inductor": torch.compile(operator.reference, dynamic=False),
                        "fusewheel": operator.overload,
                    }
                    for backward in (False, True):
                        times = measure(
                            {
                                k: runner(f, operator, arguments, backward)
                                for k, f in functions.items()
                            },
                            options.seconds,
                        )
                        bytes_moved = traffic(operator, arguments, backward)
                        row = Row(
                            *(name, case, dtype_name, threads, backward),
                            *times.values(),
                            copy_roof=bytes_moved * roof,
                        )
                        print(row.text(), flush=True)
                        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", nargs="*", default=[], help="names (default: all)")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--threads", nargs="*", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--seconds", type=float, default=0.5, help="per competitor and cell")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if any(os.environ.get(k) != v for k, v in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{platform.processor() or platform.machine()}"
    )
    measured = rows(options)
    for other in ("eager", "inductor"):
        ratios = [getattr(row, other) / row.fusewheel for row in measured]
        print(f"geometric mean against {other}: {statistics.geometric_mean(ratios):.2f}x")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in measured], indent=1))


if __name__ == "__main__":
    main()
