"""A release without an upload: the tag of a clone, and an index on this machine."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from scripts import ROOT, load_script

dry_run = load_script("wheels/dry_run.py")
FILES = {
    "python/fusewheel/_core/version.py": '__version__ = "1.2.3"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- all\n",
    "CITATION.cff": "title: x\nversion: 1.2.3\nlicense: y\n",
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, of which a release can be made."""
    folder = tmp_path / "repository"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "wheels").mkdir()
    shutil.copy(ROOT / "wheels" / "tag.py", folder / "wheels")
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
    for command in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "-m", "all")):
        subprocess.run(("git", "-C", str(folder), *command), check=True)
    monkeypatch.setattr(dry_run, "ROOT", folder)
    return folder


def test_a_clone_is_tagged_and_the_repository_is_not(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    assert dry_run.tag(clone) == "v1.2.3"
    changes = (clone / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [1.2.3] - 20" in changes and "- all" in changes
    tags = [
        subprocess.run(
            ("git", "-C", str(folder), "tag", "--points-at", "HEAD"),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for folder in (clone, repository)
    ]
    assert tags == ["v1.2.3\n", ""]


def test_a_release_that_does_not_fit_stops(repository: Path, tmp_path: Path) -> None:
    (repository / "CITATION.cff").write_text("title: x\nversion: 1.2.2\n")
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
    subprocess.run(("git", "-C", str(repository), *who, "commit", "-qam", "old"), check=True)
    with pytest.raises(SystemExit, match="CITATION"):
        dry_run.tag(tmp_path / "clone")


def test_an_index_lists_each_package_by_its_name(tmp_path: Path) -> None:
    wheels = [tmp_path / name for name in ("a-1.0-py3-none-any.whl", "a_cpu-1.0-py3-none-any.whl")]
    for wheel in wheels:
        wheel.write_bytes(b"")
    dry_run.index(wheels, tmp_path / "index")
    with dry_run.served(tmp_path / "index") as address:
        for package, wheel in zip(("a", "a-cpu"), wheels, strict=True):
            with urllib.request.urlopen(f"{address}/{package}/") as answer:
                assert f'href="{wheel.name}"' in answer.read().decode()
