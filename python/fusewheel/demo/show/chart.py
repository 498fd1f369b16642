"""The chart of a run: speed-up over the reference mode, per phase and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusewheel.demo.show.report import Report
from fusewheel.demo.show.results import Row

_TITLES = {"prefill": "prefill", "decode": "decode", "train": "training step"}
_COLOURS = {"eager": "#9aa5b1", "inductor": "#5b8db8", "fusewheel": "#e4572e"}
_OTHER_COLOURS = ("#3aa17e", "#8e6bbf", "#c9a227")


def draw(report: Report, path: Path) -> bool:
    """Write the chart as PNG; False if there is nothing to compare."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    reference = report.settings.reference
    modes = [mode for mode in report.settings.modes if mode != reference]
    dtypes = [
        dtype
        for dtype in report.settings.dtypes
        if any(row.ratio(mode, reference) for row in _drawn(report, dtype) for mode in modes)
    ]
    if not dtypes:
        return False
    figure, all_axes = plt.subplots(
        1,
        len(dtypes),
        figsize=(1.6 + 4.2 * len(dtypes), 4.4),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, dtype in zip(all_axes[0], dtypes, strict=True):
        _draw_dtype(axes, _drawn(report, dtype), modes, reference)
        axes.set_title(dtype, fontsize=11)
    all_axes[0][0].set_ylabel(f"speed relative to {reference}")
    all_axes[0][0].set_ylim(0, all_axes[0][0].get_ylim()[1] * 1.08)
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(_title(report), fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def _drawn(report: Report, dtype: str) -> list[Row]:
    return [row for row in report.rows if row.dtype == dtype and row.phase is not None]


def _draw_dtype(axes: Any, rows: Sequence[Row], modes: Sequence[str], reference: str) -> None:
    """Grouped bars, one group per phase, with a line where the reference stands."""
    width = 0.8 / len(modes)
    others = iter(_OTHER_COLOURS * len(modes))
    for index, mode in enumerate(modes):
        ratios = [row.ratio(mode, reference) for row in rows]
        offset = (index - (len(modes) - 1) / 2) * width
        bars = axes.bar(
            [group + offset for group in range(len(rows))],
            [ratio or 0.0 for ratio in ratios],
            width * 0.92,
            color=_COLOURS.get(mode) or next(others),
            label=mode,
            zorder=2,
        )
        labels = [row.ratio_text(mode, reference) or "no figure" for row in rows]
        backdrop = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
        axes.bar_label(bars, labels, padding=3, fontsize=8.5, bbox=backdrop, zorder=4)
    axes.axhline(1.0, color="#333333", linewidth=1, linestyle="--", label=reference, zorder=3)
    axes.set_xticks(range(len(rows)), [_TITLES.get(row.phase or "", row.label) for row in rows])
    axes.tick_params(length=0)
    axes.grid(axis="y", color="#e3e7eb", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _title(report: Report) -> str:
    model, machine = report.model, report.machine
    layers, total = model.get("layers"), model.get("layers_of_model")
    part = "" if layers == total else f" (first {layers} of {total} layers)"
    return (
        f"{model.get('name', 'model')}{part}\n"
        f"threads: {machine.get('threads', '?')}, torch {machine.get('torch', '?')}, "
        f"{machine.get('capability', '?')}"
    )
