"""Registers of the kernels and how many of them a GPU runs at a time.

`python -m cuda_emulated.counts.resources` compiles all kernels and writes `resources.json`;
`python -m cuda_emulated.counts.resources norm/ rope` compiles files whose names have these words.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cuda_emulated.counts.cases import CASES
from cuda_emulated.counts.counted import Counted, counted
from cuda_emulated.counts.kernels import at, demangled, short
from cuda_emulated.counts.launches import WARP, Launch

ROOT = Path(__file__).parents[3]
STORED = Path(__file__).with_name("resources.json")
USED = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) reg", re.S
)
STATIC = 1024
"""Bytes of shared memory that each block takes beside what it asks for."""


@dataclass(frozen=True)
class Processor:
    """Limits of one multiprocessor, from the tables of the CUDA programming guide.

    Attributes:
        warps: that it holds at most.
        blocks: that it holds at most.
        shared: bytes of shared memory.
    """

    warps: int
    blocks: int
    shared: int


REGISTERS = 65536
REGISTERS_AT_ONCE = 256
PROCESSORS = {
    "75": Processor(32, 16, 64 << 10),
    "80": Processor(64, 32, 164 << 10),
    "86": Processor(48, 16, 100 << 10),
    "89": Processor(48, 24, 100 << 10),
    "90": Processor(64, 32, 228 << 10),
    "100": Processor(64, 32, 228 << 10),
    "120": Processor(48, 32, 100 << 10),
}
"""By compute capability."""
RUNS = {"86": "80", "89": "80"}
"""Whose machine code a GPU runs that has none of its own in the wheel."""

Resources = dict[str, dict[str, list[int]]]
"""Of each kernel and compute capability: registers, bytes that are spilled."""


def occupancy(launch: Launch, registers: int, processor: Processor) -> float:
    """The share of a multiprocessor's warps that it can run.

    A kernel that asked for more shared memory than the GPU has would take what there is.
    """
    warps = -(-launch.threads // WARP)
    a_warp = -(-registers * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    blocks = min(
        processor.blocks,
        processor.warps // warps,
        REGISTERS // (a_warp * warps),
        processor.shared // min(launch.shared + STATIC, processor.shared),
    )
    return blocks * warps / processor.warps


def stored() -> Resources:
    """What was compiled last."""
    return dict(json.loads(STORED.read_text()))


def parsed(output: str) -> Iterator[tuple[str, list[int]]]:
    """Each kernel in what `ptxas -v` prints, with its registers and spilled bytes."""
    found = USED.findall(output)
    names = demangled([mangled for mangled, _, _ in found])
    for name, (_, spilled, registers) in zip(names, found, strict=True):
        yield short(name), [int(registers), int(spilled)]


def compiled(nvcc: str, source: Path, capability: str) -> str:
    """What `ptxas -v` prints of one file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", f"-arch=sm_{capability}", "-cubin", "-Xptxas=-v"]
        command += [f"-I{ROOT / 'packages' / 'schema' / 'include'}", f"-I{ROOT / 'cuda_kernels'}"]
        command += [str(source), "-o", f"{folder}/kernels"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def launched() -> Iterator[tuple[Counted, Launch, str]]:
    """Every different kernel that the cases launch."""
    seen = set()
    for case in CASES:
        for launch in counted(case).launches:
            name = at(launch.kernel)
            if name not in seen:
                seen.add(name)
                yield counted(case), launch, name


def compiler() -> str:
    """The nvcc that pip installs beside this Python, as it does to build wheels, or another."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    found = [str(nvcc) for folder in folders for nvcc in Path(folder).glob("cu*/bin/nvcc")]
    if not found and (other := shutil.which("nvcc")) is not None:
        found = [other]
    if not found:
        raise SystemExit(
            "nvcc is missing: packages/fusewheel-cuda/pyproject.toml names its packages"
        )
    return found[0]


def keep(found: Resources) -> None:
    """Writes what has been compiled so far."""
    lines = (f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def add(found: Resources, wanted: Collection[str], capability: str, output: str) -> None:
    """Takes what is wanted from what `ptxas -v` prints, and every other kernel that spills.

    Every GPU that runs code for `capability` gets it.
    """
    gpus = [gpu for gpu in PROCESSORS if RUNS.get(gpu, gpu) == capability]
    for name, resources in parsed(output):
        _, spilled = resources
        if name in wanted or spilled:
            found.setdefault(name, {}).update(dict.fromkeys(gpus, resources))
        elif name in found:
            found.pop(name)


def main(nvcc: str, parts: Sequence[str]) -> None:
    """Compiles kernels for every GPU and keeps what the cases launch, and what spills registers.

    Those of files without any of `parts` in their names are left as they were. What is compiled is
    written at once: a run that is ended early goes on with the files that are left.
    """
    wanted = {name for _, _, name in launched()}
    found: Resources = {name: by_gpu for name, by_gpu in stored().items() if name in wanted}
    folder = ROOT / "cuda_kernels"
    sources = [
        source
        for source in sorted(folder.glob("*/*.cu"))
        if not parts or any(part in str(source.relative_to(folder)) for part in parts)
    ]
    images = [capability for capability in PROCESSORS if capability not in RUNS]
    jobs = [(source, capability) for source in sources for capability in images]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        printed = pool.map(lambda job: compiled(nvcc, *job), jobs)
        for (source, capability), output in zip(jobs, printed, strict=True):
            add(found, wanted, capability, output)
            keep(found)
            print(f"{source.relative_to(folder)} for sm_{capability}", flush=True)


if __name__ == "__main__":
    main(compiler(), sys.argv[1:])
