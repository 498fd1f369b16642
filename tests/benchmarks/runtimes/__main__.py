"""One process: loads a model with one runtime, generates, and prints what it took as JSON.

It imports nothing but that runtime: the time from its start and its peak memory are figures.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.runtimes import names
from benchmarks.runtimes.request import Answer, Request, Runtime


def main() -> None:
    """Answers the request in the first argument, in the last line of the standard output."""
    request = Request.loads(sys.argv[1])
    runtime = names.RUNTIMES[request.runtime]
    module = importlib.import_module(f"benchmarks.runtimes.{runtime.module}")
    answer = measure(module.load(request), request)
    print(json.dumps(asdict(answer)), flush=True)


def measure(loaded: Runtime, request: Request) -> Answer:
    """The first run, then the timed ones."""
    tokens = loaded.generate(request.prompts, request.first).tokens
    first = time.time() - request.started
    # In a second run of a new length, compilers may compile once more.
    loaded.generate(request.prompts, request.tokens + 1)
    prefills, decodes = [], []
    end = time.monotonic() + request.seconds
    for _ in range(request.repeats):
        times = loaded.generate(request.prompts, request.tokens + 1)
        prefills.append(times.prefill)
        decodes.append(times.decode)
        if time.monotonic() > end:
            break
    return Answer(first, prefills, decodes, _peak_bytes(), tokens)


def _peak_bytes() -> int:
    """Of the whole life of this process; 0 where the system does not tell."""
    # Not `resource.getrusage`, which counts the process that started this one.
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = status.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
