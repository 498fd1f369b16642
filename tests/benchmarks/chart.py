"""Ratios as bars that start at 1: to the right is faster, and twice is as far as half."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from benchmarks.tables import Panels

_COLOURS = ("#5b8db8", "#e4572e", "#3aa17e", "#8e6bbf", "#c9a227", "#9aa5b1", "#7a4b2a")
_PANELS_IN_A_ROW = 4


def draw(panels: Panels, title: str, path: Path) -> None:
    """Writes the chart as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator

    series = list(dict.fromkeys(s for panel in panels.values() for g in panel.values() for s in g))
    groups = max(len(panel) for panel in panels.values())
    columns = min(len(panels), _PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    width = 4 + 3.4 * columns
    figure, all_axes = plt.subplots(
        rows,
        columns,
        figsize=(width, 1.2 + rows * (0.6 + groups * (0.1 + 0.17 * len(series)))),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axes in all_axes.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, panel) in zip(all_axes.flat, panels.items(), strict=False):
        _panel(axes, panel, series)
        axes.set_title(name, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.xaxis.set_minor_locator(NullLocator())
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    # Nine letters an inch leave the corners free.
    lines = (textwrap.fill(line, int(9 * width)) for line in title.splitlines())
    figure.suptitle("\n".join(lines), fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axes: Any, panel: dict[str, dict[str, float]], series: list[str]) -> None:
    height = 0.8 / len(series)
    for index, name in enumerate(series):
        at = [group + (index + 0.5) * height - 0.4 for group in range(len(panel))]
        ratios = [values.get(name, 1.0) for values in panel.values()]
        axes.barh(
            at,
            [ratio - 1 for ratio in ratios],
            height * 0.9,
            left=1.0,
            color=_COLOURS[index % len(_COLOURS)],
            label=name,
            zorder=2,
        )
    axes.axvline(1.0, color="#333333", linewidth=1, zorder=3)
    axes.set_yticks(range(len(panel)), list(panel), fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e3e7eb", zorder=0)
    axes.tick_params(length=0, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
