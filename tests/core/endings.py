"""What a child process does in these tests; a spawned one imports it from here."""

from __future__ import annotations

import os
import signal


def run_out(status: int) -> None:
    print("printed")
    os.system("echo by a program")
    os._exit(status)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
