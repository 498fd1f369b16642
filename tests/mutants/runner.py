"""Runs of pytest in a copy of the repository, each in a process that has PyTorch already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from mutants.tests_of import Run
from mutants.workspace import Workspace

# After which tests count as such that never end: all of a run, and one of its tests, which is given
# time of the processor.
SECONDS, TEST_SECONDS = 900.0, 120
SERVER = Path(__file__).with_name("server.py")


class Runner:
    """Runs tests of a workspace; what is common to all runs is imported once for each environment.

    Args:
        workspace: where.
        env: variables of every run's environment.
        imports: modules that are imported before.
    """

    def __init__(self, workspace: Workspace, env: dict[str, str], imports: tuple[str, ...]) -> None:
        self.workspace = workspace
        self.env = env
        self.imports = imports
        self.test_seconds = TEST_SECONDS
        self._servers: dict[tuple[tuple[str, str], ...], subprocess.Popen[str]] = {}

    def run(self, run: Run, left_out: set[str]) -> tuple[int, str]:
        """The exit status of pytest, and the test that failed."""
        cache = self.workspace.folder / "pytest"
        last = cache / "v" / "cache" / "lastfailed"
        last.unlink(missing_ok=True)
        output = self.workspace.folder / "output"
        options = ["-v", "-x", "-o", f"cache_dir={cache}"]
        # Of modules that are imported before, some bring plugins of pytest.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += [f"--deselect={name}" for name in sorted(left_out)]
        asked = {
            "arguments": [*options, *run.arguments],
            "output": str(output),
            "seconds": SECONDS,
            "test_seconds": self.test_seconds,
        }
        server = self._server(run.env)
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs pytest has ended: {server.wait()}")
        failed = list(json.loads(last.read_text())) if last.exists() else []
        return int(answer), failed[0] if failed else _unfinished(output.read_text(errors="replace"))

    def close(self) -> None:
        """Ends the processes."""
        for server in self._servers.values():
            server.communicate()
        self._servers.clear()

    def _server(self, env: dict[str, str]) -> subprocess.Popen[str]:
        key = tuple(sorted(env.items()))
        if key not in self._servers:
            paths = [str(self.workspace.site), str(self.workspace.tree / "tests")]
            self._servers[key] = subprocess.Popen(
                [sys.executable, str(SERVER), *self.imports],
                cwd=self.workspace.tree,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([*paths, *_own_paths()]),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "OMP_WAIT_POLICY": "PASSIVE",
                    "OMP_NUM_THREADS": "2",
                    **self.env,
                    **env,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self._servers[key]


def _own_paths() -> list[str]:
    """What this process was told to look for modules in, but for the repository's tests."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in given if path and not (Path(path) / "mutants").is_dir()]


def _unfinished(output: str) -> str:
    """The test that pytest had begun when it ended: its line has no result yet."""
    begun = [line for line in output.splitlines() if line.startswith("tests/") and "::" in line]
    return begun[-1].strip() if begun and "%]" not in begun[-1] else ""
