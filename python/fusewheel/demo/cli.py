"""The command line of the demo."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fusewheel._core.process import ChildError
from fusewheel._core.show import Colours, ratio_colour, show
from fusewheel.demo.isa import LEVELS
from fusewheel.demo.models.weights import MissingDependencyError, check_dependencies
from fusewheel.demo.progress import Progress
from fusewheel.demo.run import prepare, run_demo
from fusewheel.demo.settings import FORMATS, MODES, QUICK, Settings
from fusewheel.demo.show import chart, report

_DESCRIPTION = """\
Run SmolLM2-135M-Instruct in eager PyTorch, with Inductor and with fusewheel: generate a text from a
real prompt, take training steps, compare the results token by token, and print times and memory.
Then do the same with the file's own 4-bit weights, beside llama.cpp.
The exit status is 1 if a mode fails, or if its results in fp32 differ from eager PyTorch's."""

COLOURS: Colours = {
    r"(?<= )\d+\.\d\dx(?= |$)": ratio_colour,
    r"(?<=: )ok(?= -)": "green",
    r"(?<=: )differs \(allowed\)(?= -)": "yellow",
    r"^FAILED|(?<=: )FAILED(?= -)": "red",
    r"UNSTEADY": "yellow",
}
"""Of ratios that can be trusted, of comparisons and of what is wrong."""


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    options = parser().parse_args(argv)
    try:
        check_dependencies()
    except MissingDependencyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        return run(_settings(options), options.json, options.chart)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def run(settings: Settings, json_path: Path | None, chart_path: Path | None) -> int:
    """Run with these settings, print and write the results; returns the exit code."""
    progress = Progress(sys.stdout)
    with tempfile.TemporaryDirectory(prefix="fusewheel-demo-") as name:
        folder = Path(name)
        try:
            model = prepare(settings, folder, progress)
        except ChildError as error:
            print(f"error: cannot load the model: {error}\n{error.details}", file=sys.stderr)
            return 1
        found = run_demo(settings, folder, model, progress)
    return publish(found, json_path, chart_path)


def publish(found: report.Report, json_path: Path | None, chart_path: Path | None) -> int:
    """Print the report and write the files; returns the exit code."""
    print()
    show(found, as_json=False, colours=COLOURS)
    print()
    if chart_path is not None:
        drawn = chart.draw(found, chart_path)
        print(f"Chart written to {chart_path}" if drawn else "No chart: nothing to compare")
    if json_path is not None:
        json_path.write_text(found.to_json() + "\n")
        print(f"Figures written to {json_path}")
    for failure in found.failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if found.failures else 0


def _settings(options: argparse.Namespace) -> Settings:
    settings = QUICK if options.quick else Settings()
    return dataclasses.replace(
        settings,
        modes=options.modes,
        dtypes=options.dtypes or settings.dtypes,
        threads=options.threads,
        isa=options.isa,
        llama_cpp=options.llama_cpp,
    )


def parser() -> argparse.ArgumentParser:
    """The options of `fusewheel demo`."""
    found = argparse.ArgumentParser(prog="fusewheel demo", description=_DESCRIPTION)
    found.add_argument(
        "--quick",
        action="store_true",
        help=f"finish in about three minutes on two cores: only the first {QUICK.layers} layers "
        "of the model, shorter text, fewer repeats, training only if time is left",
    )
    found.add_argument("--json", type=_output, metavar="FILE", help="write all figures to FILE")
    found.add_argument("--chart", type=_output, metavar="FILE", help="draw the ratios, as a PNG")
    found.add_argument(
        "--modes",
        type=_mode_list,
        metavar="LIST",
        default=MODES,
        help=f"modes to compare, separated by commas (default: {','.join(MODES)}); every name "
        "but 'eager' is a backend of torch.compile",
    )
    found.add_argument(
        "--dtypes",
        type=_dtype_list,
        metavar="LIST",
        help=f"number formats, separated by commas (default: {','.join(FORMATS)}; "
        f"with --quick: {','.join(QUICK.dtypes)}); int4 runs the blocks of the file",
    )
    found.add_argument(
        "--isa",
        choices=LEVELS,
        help="restrict PyTorch, oneDNN, MKL, Inductor and fusewheel to the instructions of an "
        "older CPU (llama.cpp uses those of its build)",
    )
    found.add_argument(
        "--no-llama-cpp",
        dest="llama_cpp",
        action="store_false",
        help="leave llama.cpp out (by default it runs the same file if xllamacpp is installed)",
    )
    found.add_argument(
        "--threads",
        type=_positive,
        metavar="N",
        help="the number of threads of PyTorch (default: PyTorch chooses)",
    )
    return found


def _mode_list(text: str) -> tuple[str, ...]:
    modes = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not modes:
        raise argparse.ArgumentTypeError("at least one mode is needed")
    return modes


def _dtype_list(text: str) -> tuple[str, ...]:
    dtypes = _mode_list(text)
    unknown = [dtype for dtype in dtypes if dtype not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {list(FORMATS)}")
    return dtypes


def _output(text: str) -> Path:
    """A path for results; it is checked before the minutes of work and not after them."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one thread is needed")
    return number
