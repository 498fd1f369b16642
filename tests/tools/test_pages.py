"""The sources of the documentation site."""

from __future__ import annotations

import re
from pathlib import Path

import fusewheel
import pytest
from scripts import ROOT, load_script

pages_of = load_script("tools/pages.py")
speed_of = load_script("tools/speed.py")


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("[a](compiler.md)", "[a](compiler.md)"),
        ("[a](compiler.md#how)", "[a](compiler.md#how)"),
        ("[a](../CONTRIBUTING.md#seeds)", "[a](contributing.md#seeds)"),
        ("[a](../README.md)", "[a](index.md)"),
        ("![a](demo.png)", "![a](demo.png)"),
        ("[a](../packages/examples/cpp/run_model.cpp)", "a"),
        ("[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("[a](#how)", "[a](#how)"),
    ],
)
def test_links_of_a_page_of_docs(link: str, wanted: str) -> None:
    assert pages_of.page(f"x {link} y", ROOT / "docs" / "page.md") == f"x {wanted} y"


def test_links_of_the_first_page() -> None:
    text = pages_of.page("[a](docs/compiler.md#b) [c](CHANGELOG.md)", ROOT / "README.md")
    assert text == "[a](compiler.md#b) [c](changelog.md)"


def test_every_page_operator_and_public_name_is_on_the_site(tmp_path: Path) -> None:
    pages_of.write(tmp_path / "source")
    pages = {path.name: path.read_text() for path in (tmp_path / "source").glob("*.md")}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(pages)
    operators = re.findall(
        r"autofunction:: fusewheel\.(\w+)$", pages["operators-reference.md"], re.M
    )
    assert operators == sorted(fusewheel.ops.functions())
    reference = pages["operators-reference.md"]
    assert "fusewheel::rms_norm(\n    Tensor x,\n" in reference
    assert reference.count("| kernels | CPU, CUDA |") > 20
    assert reference.count("Speed, [recorded](benchmarks.md#") > 14
    for name in ("fusewheel.explain", "fusewheel.nn.RMSNorm", "fusewheel.patch"):
        assert f":: {name}\n" in pages["api.md"], name
    assert pages["index.md"].count("{toctree}") == len(pages_of.PARTS)


def test_a_schema_has_a_line_for_each_argument() -> None:
    text = pages_of.schema_text("a::f(Tensor x, float eps) -> (Tensor y, Tensor z)")
    assert text == "a::f(\n    Tensor x,\n    float eps,\n) -> (Tensor y, Tensor z)"


def test_every_page_has_a_place() -> None:
    placed = {name for names in pages_of.PARTS.values() for name in names}
    text = pages_of.contents(placed | {"index", "new"})
    assert ":caption: More\n\nnew\n" in text and "index" not in text
    assert ":caption: More" not in pages_of.contents(placed | {"index"})
    with pytest.raises(SystemExit, match=r"pages that are gone: \['modules'\]"):
        pages_of.contents(placed - {"modules"})


def test_what_the_benchmarks_have_recorded_of_an_operator() -> None:
    page = """<!-- bench operators -->
## Operators, held to avx2

A processor (AVX2), cores: 2, threads: 2, 1\\
measured on 2026-11-21, added in commit e609f53

| operator | case | dtype | threads | pass | ms | x eager | x Induct. |
| :-- | :-- | :-- | --: | :-- | --: | --: | --: |
| gelu | 8x576 | float32 | 2 | fwd | 0.010 | 1.50 | 0.75 |
| gelu | 8x576 | float32 | 2 | fwd+bwd | 0.010 | 2.50 | 1.25 |
| gelu | 4x4 | float32 | 2 | fwd | 0.010 | 4.00 | 3.00 |
| gelu | 8x576 | float32 | 1 | fwd | 0.010 | 9.00 | 9.00 |
| rope | 8x576 | float32 | 2 | fwd | 0.010 | 7.00 | 8.00 |
<!-- end of bench operators -->
"""
    assert speed_of.speeds(page) == {
        "gelu": "Speed, [recorded](benchmarks.md#operators-held-to-avx2) on 2026-11-21, A processor"
        " (AVX2), with 2 threads: how many times as fast as eager PyTorch (`x eager`), Inductor"
        " (`x Induct.`).\n\n"
        "| case | dtype | x eager fwd | x Induct. fwd | x eager fwd+bwd | x Induct. fwd+bwd |\n"
        "| :-- | :-- | --: | --: | --: | --: |\n"
        "| 8x576 | float32 | 1.50 | 0.75 | 2.50 | 1.25 |\n"
        "| 4x4 | float32 | 4.00 | 3.00 |  |  |",
        "rope": "Speed, [recorded](benchmarks.md#operators-held-to-avx2) on 2026-11-21, A processor"
        " (AVX2), with 2 threads: how many times as fast as eager PyTorch (`x eager`), Inductor"
        " (`x Induct.`).\n\n"
        "| case | dtype | x eager fwd | x Induct. fwd |\n"
        "| :-- | :-- | --: | --: |\n"
        "| 8x576 | float32 | 7.00 | 8.00 |",
    }


def test_every_table_with_operators_is_on_their_page() -> None:
    """A table that was renamed would be left out without a word."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert [name for name, _ in speed_of.sections(page)] == list(speed_of.SOURCES)
    operators = {*fusewheel.ops.functions(), "F.linear"}  # the rival has rows of its own
    assert set(speed_of.speeds(page)) <= operators
