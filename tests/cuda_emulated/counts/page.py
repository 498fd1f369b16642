"""docs/cuda-counts.md: `python -m cuda_emulated.counts.page` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cuda_emulated.counts.attention_arguments import SEQUENCES
from cuda_emulated.counts.cases import CASES, PREDICTED
from cuda_emulated.counts.counted import Counted, counted
from cuda_emulated.counts.figures import LEAST, MOST, Figures, figures, missed
from cuda_emulated.counts.floors import FLOORS, HALF
from cuda_emulated.counts.predicted import COPY, GPUS, LAUNCH, PRODUCTS, seconds, share, write
from cuda_emulated.counts.resources import PROCESSORS, launched, occupancy, stored

PAGE = Path(__file__).parents[3] / "docs" / "cuda-counts.md"
EXAMPLES = {
    "75": "T4, RTX 2080",
    "80": "A100",
    "86": "A10, RTX 3090",
    "89": "L4, RTX 4090",
    "90": "H100",
    "100": "B200",
    "120": "RTX 5090",
}
"""GPUs of each compute capability."""


def of(capability: str) -> str:
    """How compilers call the machine code of a compute capability."""
    return f"sm_{capability}"


INTRODUCTION = """# CUDA kernels: counted, not measured

**Nobody has run these kernels on a GPU.** The tests run them on a CPU, thread by thread, and see
every access to memory. This page is written from what they counted. The times are predictions.

```bash
python noxfile.py -s cuda_emulated -- tests/cuda_emulated/counts   # count, and compare
python noxfile.py -s cuda_counts                                   # count, and write
python noxfile.py -s bench_cuda                                    # measure, on a GPU
```

## What is counted

The kernels are compiled with a call at each access to memory. The accesses that the 32 lanes of a
warp make together are one instruction, as on a GPU.
"""

MEANINGS = {
    "bytes": "Bytes that move between the GPU and its memory, divided by the bytes of all "
    "arguments and results. What is read again counts once if caches still hold it: a warp may "
    "fetch its part of 64 KB a block in between. (192 KB for the gradients of attention in "
    "float32: a multiprocessor runs two of their blocks, for each of which an A100 has 194 KB of "
    "its second cache, and the others have as much or more.) A block has 227 KB of shared memory, "
    "as on an H100; where it has less, `cross_entropy` reads a part of a long row again. The "
    "partial sums of a norm's gradient count as needed. So does what the two launches of "
    "`attention_backward` "
    "share: a key's gradient begins with the product of every query's gradient and result, which "
    "a launch before computes; both launches read `grad`. (At the full shape these are 4 MB, which "
    "the second cache of each of these GPUs holds from one launch to the next.) With many rows "
    "stored codes and blocks are decoded for a product, to float32 or, for tensor cores, to sums "
    "of three bfloat16 numbers: these numbers count as needed too, written and read. So do the "
    "values of `attention` by ordinary instructions, which it reads before to mark those that are "
    "not finite.",
    "sectors": "Pieces of 32 bytes that the instructions touch, divided by the pieces that would "
    "hold the bytes that they ask for. It is 1 if neighbouring lanes read neighbouring bytes.",
    "conflicts": "Passes through shared memory, divided by the passes without conflicts between "
    "its banks.",
    "lanes": "Share of the lanes that take part in an access to global memory. Each access counts "
    "as often as it touches sectors.",
    "wide": "Share of the bytes that are asked for 16 bytes a lane.",
    "again": "How often a sector is asked for. Caches answer all but the first; the more, the more "
    "they have to do.",
}

GATES = """
A figure outside of its gate is **bold**. It is also listed in
`tests/cuda_emulated/counts/missed.py`: a test fails if it becomes worse, and if it becomes better
without the list being changed.

Races have no figure: there must be none. If a thread writes a byte, another thread of its block
accesses that byte only after a barrier, and another block of the launch does not access it. So the
results do not depend on the order of blocks, nor on which of them run side by side. A test checks
that no kernel has atomics or waits for another block. No kernel reads shared memory that its block
has not written. Every operator is checked with all the float32 samples of its tests, and those that
have kernels for tensor cores with the bfloat16 ones too, attention with those in float16 as well;
`linear` also with a weight in each half type.

`decoding` is what happens to a weight before PyTorch multiplies it with many rows, and `rounding`
what happens to activations that are rounded to 8 bits: what the product moves is not counted. In
the rows `sums of 2 slices` and `sinks of 4 heads` one kernel is counted alone: the one that adds up
the gradients of a weight, or of the sinks.
"""


def packing() -> str:
    """Why its kernel has no row of its own."""
    case = next(case for case in CASES if case.operator == "attention_varlen")
    launch = counted(case).launches[0]
    alone = figures([launch], launch.moved)
    whole = counted(case).moved.bytes
    return f"""
`attention_varlen` first counts the tiles of its {SEQUENCES} sequences: a kernel of one block moves
{launch.moved} of the {whole:,} bytes of the whole row. By itself it would pass no gate of `lanes`
({alone.lanes:.0%}) or `wide` ({alone.wide:.0%}), since {SEQUENCES} sequences have not more than
{SEQUENCES + 1} bounds. Its time is that of a launch, which is in the predicted time of the row.
"""


PREDICTION = f"""
## Predicted times

**A prediction that nobody has measured.** It takes the bandwidth and the rates of products that are
published for each GPU, and three assumptions: a copy reaches {COPY:.0%} of the bandwidth,
products reach {PRODUCTS:.0%} of the rate, and a launch costs {LAUNCH * 1e6:.0f} microseconds beside
its work. `attention` and `attention_varlen` in half types with heads of 64 and 128, and their
backward, `attention_decode` with 8 heads to a cache, and `linear`, `linear_int4` and `linear_int8`
of 16 and 64 rows, use tensor cores. So do, in half types, grouped products of 8192 rows, and
products of 8192 rows with codes or blocks. The others use float32.
A case takes the time of its bytes or of its products, whichever is longer. What attention computes
again counts: the backward 7 products for 5 (8 by ordinary instructions), the forward 3 for 2 in
float16. So do the parts of numbers that tensor cores multiply: for `linear` 3 products for one, and
6 for one with a weight in float16; with decoded codes and blocks 3 for one, in float16 6. Left out:
too few threads to hide the latency of memory, the speed of caches, and pauses between launches. So
a GPU may be slower than this.

**The first cache may take the time of `linear`, `linear_int8` and `linear_int4` with few rows**, up
to 4. A warp reads all of x for every two columns of the result, and the first cache answers:
`again` says how often. It has some 4 to 10 times the rate of the memory. So with one row it may
keep up; with 4 rows of float32, which are 4 times the bytes of these columns, perhaps not on every
GPU. The gate of `sectors` does not show this. Each access asks for whole sectors, but each half of
a warp accesses all of x. One access for both halves would ask for half of each sector, and for as
many sectors in all.

Beside each time stands its share of the roof: the time in which a copy would move the bytes of
all arguments and results, divided by the predicted time. `MB` are the bytes that move at the full
shape. The share of attention is small because its products take the time, not its bytes.
"""

RESOURCES = f"""
## Registers

Registers of a thread on each architecture that has machine code in the wheel, as `ptxas` of CUDA
13.0 gives them out, and the share of a multiprocessor's warps that run at a time with as many.
Under {HALF:.0%} it is **bold**: there may be too few to hide the latency of memory. A test fails if
a kernel has less than that and is not in the second table, or less than its floor there. `spilled`
are the bytes of registers that had to go to memory, on the architecture where it is most.

The kernels for tensor cores are empty on `{of("75")}`, where others serve.
{"; ".join(f"`{of(capability)}`: {name}" for capability, name in EXAMPLES.items())}.
`sm_86` and `sm_89` run the code of `sm_80`.
"""

FEWER = f"""
These kernels have less than {HALF:.0%}, but at least their floor on every GPU that uses them:
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown; all columns but the first stand to the right."""
    yield f"| {' | '.join(header)} |"
    yield "|---|" + "---:|" * (len(header) - 1)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def gate(name: str) -> str:
    """The gate of a figure in words."""
    if name in MOST:
        return f"at most {MOST[name]:g}"
    return f"at least {LEAST[name]:.0%}" if name in LEAST else "none"


def figures_of(found: Counted) -> list[str]:
    """The cells of a case in the table of figures."""
    outside = missed(found.figures)
    cells = [found.case.name]
    for name, value in found.figures._asdict().items():
        text = f"{value:.0%}" if name in LEAST else f"{value:.2f}"
        cells.append(f"**{text}**" if name in outside else text)
    return cells


def prediction_of(found: Counted) -> list[str]:
    """The cells of a case in the table of times."""
    moved = found.moved
    cells = [found.case.name, f"{moved.bytes / 1e6:,.1f}", str(moved.launches)]
    for gpu in GPUS:
        cells.append(f"{seconds(moved, gpu) * 1e6:,.0f} µs, {share(moved, gpu):.0%}")
    return cells


def code(name: str) -> str:
    """A kernel's name on the page."""
    closed = re.sub(r"> +(?=>)", ">", name)
    return f"`{closed}`"


def resources() -> Iterator[list[str]]:
    """The rows of the table of registers."""
    compiled = stored()
    for found, launch, name in launched():
        cells = [f"{code(name)} ({found.case.operator})", str(launch.threads)]
        for capability, processor in PROCESSORS.items():
            registers, _ = compiled[name][capability]
            part = occupancy(launch, registers, processor)
            text = f"**{part:.0%}**" if part < HALF else f"{part:.0%}"
            cells.append(f"{registers}, {text}")
        most = max(spilled for _, spilled in compiled[name].values())
        yield [*cells, str(most)]


def page() -> str:
    """The whole page."""
    found, predicted = ([counted(case) for case in cases] for cases in (CASES, PREDICTED))
    names = [gpu.name for gpu in GPUS]
    lines = [INTRODUCTION, "| figure | what it is | gate |", "|---|---|---|"]
    lines += (f"| {name} | {MEANINGS[name]} | {gate(name)} |" for name in Figures._fields)
    lines += [GATES + packing(), *table(["case", *Figures._fields], map(figures_of, found))]
    lines += [PREDICTION, *table(["case", "MB", "launches", *names], map(prediction_of, predicted))]
    columns = ["kernel", "threads", *map(of, PROCESSORS), "spilled"]
    lines += [RESOURCES, *table(columns, resources()), FEWER]
    floors = ([code(name), floor.why, f"{floor.share:.0%}"] for name, floor in FLOORS.items())
    lines += table(["kernel", "what it has instead of warps", "floor"], floors)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write([counted(case).moved for case in PREDICTED])
    PAGE.write_text(page())
