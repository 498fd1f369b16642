"""Fetches Debian's packages without installing them: no root, no change to the machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
KINDS = ("deb", "deb-src")


class Debian:
    """An apt with a state of its own in `work`: to the machine's, these packages would be foreign.

    Args:
        work: where it keeps lists and archives.
        architecture: Debian's name of it, "arm64" for example.
        suite: "stable" or "testing", from the mirror this machine uses; default: what the machine
            itself runs.
    """

    def __init__(self, work: Path, architecture: str, suite: str | None = None) -> None:
        self.work, self.archives = work, work / "cache" / "archives"
        for folder in (work / "lists" / "partial", self.archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (work / "status").touch()
        options: dict[str, object] = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "Dir::State": work,
            "Dir::State::Lists": work / "lists",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
        }
        if suite is not None:
            lines = (f"{kind} [signed-by={KEYS}] {mirror()} {suite} main\n" for kind in KINDS)
            (work / "sources.list").write_text("".join(lines))
            options["Dir::Etc::SourceList"] = work / "sources.list"
            options["Dir::Etc::SourceParts"] = work / "none"
        self._apt = ("apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()))
        self._run("update")

    def unpack(self, packages: Sequence[str], root: Path) -> None:
        """Unpacks packages and all they depend on into `root`."""
        self._run("install", "--download-only", "--no-install-recommends", "--yes", *packages)
        root.mkdir(parents=True, exist_ok=True)
        for archive in self.archives.glob("*.deb"):
            subprocess.run(("dpkg", "-x", str(archive), str(root)), check=True)

    def source(self, package: str) -> Path:
        """Downloads the original sources of a package, without Debian's changes: an archive."""
        self._run("source", "--download-only", package)
        return next(self.work.glob(f"{package}_*.orig.tar.*z"))

    def _run(self, *arguments: str) -> None:
        # What went wrong is on stderr, and belongs to whoever catches the error.
        command = (*self._apt, *arguments)
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=self.work)


def mirror() -> str:
    """Where this machine gets Debian from."""
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # A security archive is another Debian: it has no suite of all packages.
    return min(done.stdout.split(), key=len)
