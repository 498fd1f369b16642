"""Times of the CUDA kernels on the GPU that is here, beside what was predicted for it.

nox -s bench_cuda -- --only rms_norm cross_entropy --json times.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from cuda_emulated.counts.cases import PREDICTED, Case
from cuda_emulated.counts.predicted import GPUS, Gpu, seconds, stored
from on_gpu.liger import liger
from on_gpu.required import require_gpu
from on_gpu.timing import Call, copies, gpu_seconds

COLUMNS = ("copy", "predicted", "measured", "eager", "Inductor", "Liger")
"""Seconds: of a copy that moves the least possible bytes, and of each competitor."""
Row = dict[str, float]
CORES = {"75": 64, "80": 64}
"""float32 units of a multiprocessor; 128 where the table has none."""


def gpu_here(properties: Any) -> Gpu:
    """The GPU by what its maker publishes, or by what it says of itself."""
    for gpu in GPUS:
        if gpu.reported in properties.name:
            return gpu
    capability = f"{properties.major}{properties.minor}"
    # Memory has two transfers a clock; a clock is in kHz, a bus in bits.
    bandwidth = 2e3 * properties.memory_clock_rate * properties.memory_bus_width / 8
    units = properties.multi_processor_count * CORES.get(capability, 128)
    float32 = 2e3 * properties.clock_rate * units
    # Tensor cores have at least twice the rate.
    return Gpu(properties.name, properties.name, bandwidth, float32, 2 * float32, capability)


def competitors(case: Case, arguments: tuple[Any, ...], device: str) -> Iterator[tuple[str, Call]]:
    """The calls to time; each may fail when it is called."""
    operator = case.declared
    yield "copy", copies(case.minimum(case.full), device)
    yield "measured", lambda: operator.overload(*arguments)
    yield "eager", lambda: operator.reference(*arguments)
    compiled = torch.compile(operator.reference, dynamic=False)
    yield "Inductor", lambda: compiled(*arguments)
    if (other := liger(case.operator, arguments)) is not None:
        yield "Liger", other


def timed(
    case: Case, gpu: Gpu, device: str, clock: Callable[[Call], float]
) -> tuple[Row, list[str]]:
    """The times of a case, and why a competitor has none."""
    with torch.device(device), torch.random.fork_rng():
        torch.manual_seed(0)
        arguments = case.make(case.full)
    row, notes = {"predicted": seconds(stored(case), gpu)}, []
    for name, call in competitors(case, arguments, device):
        try:
            row[name] = clock(call)
        except Exception as error:  # another's failure must not end the table
            if name == "measured":
                raise
            reason = str(error).strip().partition("\n")[0]
            notes.append(f"{case.name}, {name}: {type(error).__name__}: {reason}")
    return row, notes


def line(name: str, row: Row) -> str:
    """A row of the table, in microseconds, and how far the prediction was off."""
    cells = [f"{row[column] * 1e6:,.1f}" if column in row else "-" for column in COLUMNS]
    return f"| {name} | {' | '.join(cells)} | {row['measured'] / row['predicted']:.2f} |"


def header(gpu: Gpu) -> Iterator[str]:
    """What stands above the table."""
    yield f"{gpu.name}, {gpu.bandwidth / 1e9:,.0f} GB/s, torch {torch.__version__}; microseconds"
    yield f"| case | {' | '.join(COLUMNS)} | measured / predicted |"
    yield "|---|" + "---:|" * (len(COLUMNS) + 1)


def chosen(only: Sequence[str]) -> Iterable[Case]:
    """The cases of these operators; all without any."""
    names = {case.operator for case in PREDICTED}
    if unknown := set(only) - names:
        raise SystemExit(
            f"no case is called {', '.join(sorted(unknown))}; there is {sorted(names)}"
        )
    return [case for case in PREDICTED if not only or case.operator in only]


def main() -> None:
    """Prints the table row by row."""
    parser = argparse.ArgumentParser(
        prog="nox -s bench_cuda --", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="OPERATOR")
    parser.add_argument("--json", type=Path, help="write the seconds to this file")
    options = parser.parse_args()
    require_gpu()
    gpu = gpu_here(torch.cuda.get_device_properties(0))
    print(*header(gpu), sep="\n", flush=True)
    rows: dict[str, Row] = {}
    notes: list[str] = []
    for case in chosen(options.only):
        rows[case.name], missing = timed(case, gpu, "cuda", gpu_seconds)
        notes += missing
        print(line(case.name, rows[case.name]), flush=True)
    print(*notes, sep="\n")
    if options.json:
        options.json.write_text(json.dumps({"gpu": gpu.name, "seconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
