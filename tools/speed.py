"""What docs/benchmarks.md has recorded of each operator, for its entry in the reference.

Nothing is measured here, and no figure is written by hand: `nox -s bench` writes that page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Row = dict[str, str]
KINDS = {
    "causal": "attention",
    "window": "attention",
    "small": "attention",
    "long": "attention",
    "packed": "attention_varlen",
    "decode": "attention_decode",
}


@dataclass(frozen=True)
class Source:
    """A table of the page.

    Attributes:
        operator: the name of the operator that a row is about.
        case: the columns that say what was measured.
        ratios: the columns with the results, and what each of them says.
    """

    operator: Callable[[Row], str]
    case: tuple[str, ...]
    ratios: dict[str, str]


# By the name in the marker in front of the table.
SOURCES = {
    "operators": Source(
        lambda row: row["operator"],
        ("case", "dtype"),
        {"x eager": "eager PyTorch", "x Induct.": "Inductor"},
    ),
    "attention": Source(
        lambda row: KINDS[row["case"].split()[0]],
        ("case", "dtype"),
        {"x SDPA": "`scaled_dot_product_attention`"},
    ),
    "linear avx2": Source(
        lambda row: row["layer"].split()[0],
        ("layer", "case", "x"),
        {"x fp32": "`F.linear` in float32", "x bf16": "`F.linear` in bfloat16"},
    ),
    "linear_cross_entropy": Source(
        lambda row: "linear_cross_entropy",
        ("case", "dtype"),
        {"x eager": "`cross_entropy` of `linear`, with both gradients"},
    ),
}


def sections(page: str) -> Iterator[tuple[str, str]]:
    """The tables that `SOURCES` names and the page has: name and text."""
    for name in SOURCES:
        found = re.search(rf"<!-- bench {name} -->\n(.*?)<!-- end of bench", page, re.DOTALL)
        if found:
            yield name, found[1]


def rows(section: str) -> list[Row]:
    """The rows of the table of a section, by the titles of its columns."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    titles, _, *cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in cells]


def about(section: str) -> str:
    """The processor and the date of a section, in words."""
    title, processor, date = (
        re.search(pattern, section, re.MULTILINE)
        for pattern in (r"^## (.+)$", r"^(.+?), cores: ", r"^measured on ([\d-]+)")
    )
    assert title and processor and date, section[:300]
    anchor = re.sub(r"[^\w\- ]", "", title[1].lower()).replace(" ", "-")
    return f"[recorded](benchmarks.md#{anchor}) on {date[1]}, {processor[1]}"


def speeds(page: str) -> dict[str, str]:
    """For each operator that the page has figures of: a sentence and a table in Markdown."""
    found: dict[str, str] = {}
    for name, section in sections(page):
        source, every = SOURCES[name], rows(section)
        most = max(int(row["threads"]) for row in every)
        of: dict[str, list[Row]] = {}
        for row in every:
            if int(row["threads"]) == most:
                of.setdefault(source.operator(row), []).append(row)
        for operator, own in of.items():
            text = f"Speed, {about(section)}, with {most} threads: how many times as fast as"
            found[operator] = f"{text} {_compared(source)}.\n\n{_table(source, own)}"
    return found


def _compared(source: Source) -> str:
    """What the ratios compare with: `eager PyTorch (x eager), Inductor (x Induct.)`."""
    return ", ".join(f"{rival} (`{title}`)" for title, rival in source.ratios.items())


def _table(source: Source, own: list[Row]) -> str:
    """A line for each case; the passes stand beside each other."""
    passes = tuple(dict.fromkeys(row.get("pass", "") for row in own))
    heads = [f"{title} {way}".strip() for way in passes for title in source.ratios]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in own:
        line = lines.setdefault(tuple(row[title] for title in source.case), {})
        for title in source.ratios:
            line[f"{title} {row.get('pass', '')}".strip()] = row[title]
    table = ["| " + " | ".join((*source.case, *heads)) + " |"]
    table += ["|" + " :-- |" * len(source.case) + " --: |" * len(heads)]
    for case, figures in lines.items():
        table.append("| " + " | ".join((*case, *(figures.get(head, "") for head in heads))) + " |")
    return "\n".join(table)
