"""A release begins with a tag that names the version, and publishes what a job has tested."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fusewheel import __version__
from scripts import ROOT, load_script

yaml = pytest.importorskip("yaml")
tag = load_script("wheels/tag.py")


def repository(
    folder: Path, version: str = "1.2.3", changes: str = "## [1.2.3] - 2027-01-02"
) -> Path:
    path = folder / "python" / "fusewheel" / "_core" / "version.py"
    path.parent.mkdir(parents=True)
    path.write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changes}\n")
    (folder / "CITATION.cff").write_text(f"title: x\nversion: {version}\nlicense: y\n")
    return folder


def test_a_tag_that_fits(tmp_path: Path) -> None:
    assert tag.problems("v1.2.3", repository(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("1.2.3", "## [1.2.3] - 2027-01-02", "the tag must be v1.2.3"),
        ("v1.2.4", "## [1.2.3] - 2027-01-02", "the tag must be v1.2.3"),
        ("v1.2.3", "## [Unreleased]", "CHANGELOG.md must have a section"),
        ("v1.2.3", "## [1.2.3]", "CHANGELOG.md must have a section"),
        ("v1.2.3", "## [1x2.3] - 2027-01-02", "CHANGELOG.md must have a section"),
    ],
)
def test_a_tag_that_does_not(tmp_path: Path, name: str, changes: str, message: str) -> None:
    (found,) = tag.problems(name, repository(tmp_path, changes=changes))
    assert found.startswith(message)


def test_the_citation_names_the_version(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (folder / "CITATION.cff").write_text("title: x\nversion: 1.2.30\n")
    assert "CITATION.cff" in tag.problems("v1.2.3", folder)[0]
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_packages_say_where_they_are_from_and_examples_ask_for_the_version(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    for name in ("fusewheel", "examples/backend"):
        (folder / "packages" / name).mkdir(parents=True)
    project = folder / "packages" / "fusewheel" / "pyproject.toml"
    project.write_text("[project]\n")
    example = folder / "packages" / "examples" / "backend" / "pyproject.toml"
    example.write_text('requires = ["fusewheel-cpu==1.2.2", "torch>=2.10"]\n')
    old, nowhere = tag.problems("v1.2.3", folder)
    assert old == (
        "packages/examples/backend/pyproject.toml must ask for fusewheel==1.2.3, got ['1.2.2']"
    )
    assert nowhere.startswith("packages/fusewheel/pyproject.toml must say in [project.urls]")
    project.write_text('[project]\n\n[project.urls]\nSource = "https://example.org"\n')
    example.write_text('requires = ["fusewheel-cpu==1.2.3"]\n')
    assert tag.problems("v1.2.3", folder) == []
    with_pins = [path.read_text() for path in ROOT.glob("packages/examples/*/pyproject.toml")]
    assert f'"fusewheel=={__version__}"' in "".join(with_pins)


def test_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert tag.main(["v0.0.0"]) == 1 and "error: the tag must be" in capsys.readouterr().err
    assert tag.main([]) == 2


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return found


def test_only_what_was_tested_is_published() -> None:
    jobs = workflow("release.yml")["jobs"]
    downloads = [
        step["with"].get("pattern", step["with"].get("name"))
        for job in jobs.values()
        for step in job.get("steps", [])
        if "download-artifact" in step.get("uses", "")
    ]
    assert set(downloads) == {"tested-*", "release"}
    assert set(jobs["wheels"]["needs"]) == {"tag", "tests"}
    build = workflow("wheels.yml")["jobs"]
    uploads = {
        step["with"]["name"]: name
        for name, job in build.items()
        for step in job.get("steps", [])
        if "upload-artifact" in step.get("uses", "")
    }
    tested = [name for name in uploads if name.startswith("tested-")]
    assert tested == ["tested-${{ matrix.runner }}", "tested-front"]
    assert build[uploads["tested-front"]]["needs"] == uploads[tested[0]]
    job = build[uploads["tested-${{ matrix.runner }}"]]
    ran = [step["run"] for step in job["steps"] if "run" in step]
    assert any("-s matrix" in command for command in ran), "tested before it is called so"
    assert "continue-on-error" not in job


def test_each_package_is_published_from_an_environment_of_its_own() -> None:
    job = workflow("release.yml")["jobs"]["publish"]
    packages = {path.parent.name for path in (ROOT / "packages").glob("fusewheel*/pyproject.toml")}
    assert set(job["strategy"]["matrix"]["package"]) == packages
    assert job["environment"] == "release-${{ matrix.package }}"


def test_a_change_of_any_source_builds_the_wheels() -> None:
    paths = workflow("wheels.yml")[True]["pull_request"]["paths"]  # YAML reads `on` as true
    for folder in ("cpu_kernels", "cuda_kernels", "python", "packages", "wheels"):
        assert f"{folder}/**" in paths


def test_workflows_name_sessions_that_exist() -> None:
    sessions = set(
        re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    )
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        named = re.findall(r"noxfile\.py -s ([a-z_]+)", path.read_text())
        assert set(named) <= sessions, path.name


def test_tools_have_one_version_everywhere() -> None:
    text = (ROOT / "tools" / "constraints.txt").read_text()
    held = dict(re.findall(r"^([a-z0-9-]+)==([\w.]+)", text, re.MULTILINE))
    assert list(held) == sorted(held) and len(held) > 20
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    named = dict(re.findall(r"\[([a-z]+)==([\w.]+)\]", hooks))
    assert named and named.items() <= held.items()
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert ("pip", "/tools") in [(u["package-ecosystem"], u["directory"]) for u in updates]


def test_files_for_the_repository_can_be_read() -> None:
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    for path in (*files, ROOT / "CITATION.cff"):
        assert yaml.safe_load(path.read_text()), path
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            names = [part["id"] for part in form["body"]]
            assert form["name"] and form["description"] and len(names) == len(set(names))


@pytest.mark.parametrize("name", ["fusewheel", "fusewheel-cpu", "fusewheel-cuda"])
def test_a_source_distribution_is_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    (tmp_path / "PKG-INFO").touch()  # which only a source distribution has
    shutil.copy(ROOT / "packages" / name / "pyproject.toml", tmp_path)
    code = "import scikit_build_core.build as b; b.prepare_metadata_for_build_wheel('out')"
    command = (sys.executable, "-c", code)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{name} cannot be built from a source distribution" in done.stdout + done.stderr
