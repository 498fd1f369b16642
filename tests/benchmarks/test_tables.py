"""Text and Markdown of a table, and its place in a page."""

from __future__ import annotations

import pytest
from benchmarks import calls, linear, operators, projection, rewrites, torchscript
from benchmarks.examples import run
from benchmarks.tables import header, insert, line, markdown

SECTION = """\
## Operators

Imagined Processor (AVX2), cores: 4, threads: 2, caches: L2 2048K\\
torch 2.13.0, python 3.11.7, fusewheel 0.1.0 (kernels v3)

How to read it.

* geometric mean against eager: 4.00x (goal: 3x)
* geometric mean against inductor: 1.50x (goal: 1.8x)

![Operators](figures/operators.png)

| operator | case | dtype | threads | pass | ms | x eager | x Induct. | of roof | missed |
| :-- | :-- | :-- | --: | :-- | --: | --: | --: | --: | :-- |
| rms_norm | 1x576 | float32 | 2 | fwd | 2.000 | 4.00 | 1.50 | 50% |  |
"""


def test_markdown_says_what_the_figures_depend_on():
    found = markdown(operators.TABLE, run(2e-3), "How to read it.", "figures/operators.png")
    assert found == SECTION
    held = markdown(operators.TABLE, run(2e-3, isa="avx2"), "")
    assert held.startswith("## Operators, held to avx2\n")
    assert "(AVX2, held to avx2 by --isa)" in held
    assert "![" not in held
    assert markdown(operators.TABLE, run(2e-3, part="sums"), "").startswith("## Operators: sums\n")


@pytest.mark.parametrize(
    "table",
    [
        *(operators.TABLE, linear.TABLE, projection.TABLE),
        *(calls.TABLE, rewrites.TABLE, torchscript.TABLE),
    ],
)
def test_titles_fit_their_columns(table):
    for column in table.columns:
        assert len(column.title) <= abs(column.width) or column is table.columns[-1]


def test_cells_stand_below_their_titles():
    titles, cells = header(operators.TABLE), line(operators.TABLE, run(2e-3).cells[0])
    assert titles.index("case") == cells.index("1x576")
    assert titles.index("ms") + 2 == cells.index("2.000") + 5


def test_a_page_is_made_and_its_sections_replaced(tmp_path):
    page = tmp_path / "benchmarks.md"
    insert(page, run(1.0), "first\n")
    insert(page, run(1.0, isa="avx2"), "avx2\n")
    assert page.read_text().startswith("# Benchmarks\n")
    assert page.read_text().count("\n\n<!-- bench operators") == 2
    insert(page, run(1.0, part="sums"), "sums\n")
    assert page.read_text().count("<!-- bench operators sums -->\nsums\n") == 1
    page.write_text(page.read_text() + "\nby hand\n")
    before = page.read_text()
    insert(page, run(1.0), "second\nof two lines\n")
    assert page.read_text() == before.replace("first\n", "second\nof two lines\n")


def test_a_page_without_the_end_of_a_section_is_left_alone(tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text("<!-- bench operators -->\nby hand\n")
    with pytest.raises(ValueError, match="without '<!-- end of bench operators -->'"):
        insert(page, run(1.0), "section\n")
    assert "by hand" in page.read_text()
