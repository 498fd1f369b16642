"""Processes that have imported torch and nothing else: copies of one, which is quicker."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

# Each copy goes on as a new interpreter would: what is raised ends it, and so does the last line.
ORIGINAL = """
import json, os, signal, sys
import torch
for line in sys.stdin:
    folder, text = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(120)
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    sys.exit()
"""


@functools.cache
def original() -> subprocess.Popen[str]:
    """The process that is copied; it ends with this one, which holds its input."""
    command = [sys.executable, "-c", ORIGINAL]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_beside_torch(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program text in a folder, where torch is imported already and nothing of fusewheel."""
    if sys.platform != "linux":
        command = [sys.executable, "-c", f"import torch\n{text}"]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=folder, timeout=120
        )
    process = original()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps([os.fspath(folder), text]) + "\n")
    process.stdin.flush()
    code = int(process.stdout.readline())
    output, errors = ((folder / name).read_text() for name in ("output", "errors"))
    return subprocess.CompletedProcess([text], code, output, errors)
