"""The programs in wheels/: what they compare, list and write down."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

import fusewheel_cpu
import fusewheel_cuda
import pytest
from scripts import load_script

compare = load_script("wheels/compare.py")
matrix = load_script("wheels/matrix.py")
sbom = load_script("wheels/sbom.py")

LIBRARIES = [
    package.library.parent / name
    for package in (fusewheel_cpu, fusewheel_cuda)
    for name in (package.library.name, "libfusewheel_schema.so")
]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_needs_nothing_newer_than_manylinux_2_28_has(library):
    command = ("readelf", "-V", "-W", str(library))
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    newest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
    found = re.findall(r"\b(GLIBC|GLIBCXX|CXXABI)_([\d.]+)", text)
    assert found
    for name, version in found:
        assert tuple(map(int, version.split("."))) <= newest[name], f"{name}_{version}"


def wheel(path, files, time=(2020, 1, 1, 0, 0, 0), mode=0o644):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name, time)
            info.external_attr = mode << 16
            archive.writestr(info, text)
    return path


@pytest.mark.parametrize(
    ("files", "options", "finding"),
    [
        ({"a": "1", "b": "2"}, {}, None),
        ({"b": "2", "a": "1"}, {}, "in another order"),
        ({"a": "1"}, {}, "only in one of them: ['b']"),
        ({"a": "1", "b": "3"}, {}, "b has other contents"),
        ({"a": "1", "b": "2"}, {"time": (2021, 1, 1, 0, 0, 0)}, "a is of another time"),
        ({"a": "1", "b": "2"}, {"mode": 0o600}, "a has another mode"),
    ],
)
def test_compared_wheels(tmp_path, capsys, files, options, finding):
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    first = wheel(folders[0] / "w-1-py3-none-any.whl", {"a": "1", "b": "2"})
    second = wheel(folders[1] / "w-1-py3-none-any.whl", files, **options)
    found = list(compare.differences(first, second))
    assert bool(found) is (finding is not None)
    assert finding is None or finding in found[0]
    assert compare.main(list(map(str, folders))) == int(finding is not None)
    assert ("differs" if finding else "the same") in capsys.readouterr().out


def test_nothing_to_compare_is_no_success(tmp_path, capsys):
    assert compare.main([str(tmp_path), str(tmp_path)]) == 1


def test_the_matrix_keeps_cells_of_the_same_files_only(tmp_path):
    file = wheel(tmp_path / "w-1-py3-none-any.whl", {"a": "1"})
    cell = matrix.Cell
    text = f"# Page\n\n{matrix.BEGIN}\n{matrix.END}\nafter\n"
    text = matrix.merge(text, [cell("3.11", "2.13", "passed", "2.13.0+cpu: 9 passed")], [file])
    skipped = [cell("3.11", "2.13", "not run", matrix.NOT_ASKED)]
    other = [*skipped, cell("3.13t", "2.13", "not run", "no Python 3.13t on this machine")]
    merged = matrix.merge(text, other, [file])
    assert "| 3.11 | passed |" in merged and "| 3.13t | not run |" in merged
    assert merged.startswith("# Page") and merged.endswith("after\n")
    assert "no Python 3.13t on this machine (3.13t with 2.13)" in merged
    # Other bytes under the same name: what was seen before says nothing about them.
    wheel(file, {"a": "2"})
    assert "| 3.11 | not run |" in matrix.merge(merged, other, [file])


def test_free_threaded_python_gets_the_wheel_without_abi3(tmp_path):
    names = [
        "fusewheel-1-py3-none-any.whl",
        "fusewheel_cpu-1-cp39-abi3-manylinux_2_28_x86_64.whl",
        "fusewheel_cpu-1-py3-none-manylinux_2_28_x86_64.whl",
    ]
    paths = [tmp_path / name for name in names]
    assert [p.name for p in matrix.files_for("3.11", paths)] == names[:2]
    assert [p.name for p in matrix.files_for("3.13t", paths)] == [names[0], names[2]]


def test_what_an_installer_says_is_one_line_without_addresses():
    said = "  \u00d7 No solution\n  \u2570\u2500 Because of https://host/a\n\n hint: look"
    assert matrix._reason(said) == "No solution Because of"


def test_pythons_that_are_there_and_one_that_is_not(tmp_path, monkeypatch):
    version = "{}.{}".format(*sys.version_info) + "t" * ("t" in sys.abiflags)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / f"python{version}").symlink_to(sys.executable)
    found = matrix.pythons.interpreter(version, tmp_path, at_hand=True)
    assert subprocess.run((found, "--version"), check=False).returncode == 0
    (tmp_path / "python9.9").symlink_to(sys.executable)  # a name is no proof
    with pytest.raises(matrix.pythons.NotToBeHad, match=r"no Python 9\.9 on this machine"):
        matrix.pythons.interpreter("9.9", tmp_path, at_hand=True)


def test_bill_of_materials_names_what_is_compiled_in(tmp_path):
    files = [
        wheel(tmp_path / f"fusewheel_{name}-1.0-x.whl", {"a": name}) for name in ("cpu", "cuda")
    ]
    document = sbom.bill(files)
    names = {component["name"]: component for component in document["components"]}
    assert set(names) == {
        "fusewheel-cpu",
        "fusewheel-cuda",
        "torch",
        "nvidia-cuda-runtime",
        "nvidia-nvtx",
    }
    assert len(names["fusewheel-cpu"]["hashes"][0]["content"]) == 64
    inside = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    assert len(inside["fusewheel_cuda-1.0-x.whl"]) == 3
