"""The experts of a mixture against those of transformers, dense products and the read bandwidth."""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fusewheel
import torch
from benchmarks.goals import DENSE, EAGER, GROUPED, READ, expert_goals, judged
from benchmarks.linear import PAUSE
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, wrapped
from benchmarks.timing import measure, reader
from torch import Tensor, nn
from torch.nn import functional as F

CASES = ("token", "prefill", "step")
OWN, INT4 = "fusewheel", "fusewheel int4"
# Choices of experts that calls take in turn, so that their weights come from memory.
_CHOICES = 64


@dataclass(frozen=True)
class Sizes:
    """A mixture, and the tokens of a prompt or a step."""

    experts: int = 32
    active: int = 4
    width: int = 1024
    between: int = 1024
    tokens: int = 256

    @property
    def weights(self) -> int:
        """Of one expert."""
        return 3 * self.width * self.between


def add_options(parser: argparse.ArgumentParser) -> None:
    sizes = Sizes()
    parser.set_defaults(threads=[2])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--experts", type=int, default=sizes.experts)
    parser.add_argument("--active", type=int, default=sizes.active, help="experts of a token")
    parser.add_argument("--width", type=int, default=sizes.width, help="features, also between")
    parser.add_argument("--tokens", type=int, default=sizes.tokens, help="of prefill and step")
    parser.add_argument(
        "--megabytes", type=int, default=256, help="size of all copies of the weights together"
    )


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    sizes = Sizes(options.experts, options.active, options.width, options.width, options.tokens)
    total = options.megabytes * 10**6
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.dtypes:
            dtype = getattr(torch, name)
            modules = ways(sizes, dtype)
            for case in options.cases:
                calls, bytes_read = competitors(case, modules, sizes, dtype, total)
                if case == "token":
                    calls[READ] = reader(total)
                times = measure(calls, options.seconds, PAUSE)
                roofs = {
                    way: size * times[READ] / total if READ in times else 0.0
                    for way, size in bytes_read.items()
                }
                yield from judge(case, name, sizes, times, roofs)


def ways(sizes: Sizes, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The same experts by transformers' implementations, by ours, and by ours with 4 bits."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    fusewheel.transformers.register()
    config = MixtralConfig(
        num_local_experts=sizes.experts,
        hidden_size=sizes.width,
        intermediate_size=sizes.between,
    )
    first = MixtralExperts(config).to(dtype)
    for parameter in first.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    found: dict[str, nn.Module] = {}
    for name in (OWN, EAGER, GROUPED, "batched_mm"):
        way = copy.copy(first)  # which shares the weights
        way.config = copy.copy(config)
        way.config._experts_implementation = name
        found[name] = way
    model = nn.Sequential(copy.deepcopy(found[OWN]))
    fusewheel.quantize_(model, "int4")
    return found | {INT4: model[0]}


def competitors(
    case: str, modules: dict[str, nn.Module], sizes: Sizes, dtype: torch.dtype, total: int
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What is timed, and the bytes of the weights that a call of each must read."""
    tokens = 1 if case == "token" else sizes.tokens
    x, grad = torch.randn(2, tokens, sizes.width).to(dtype).unbind()
    chosen = [
        fusewheel.route(torch.randn(tokens, sizes.experts), sizes.active) for _ in range(_CHOICES)
    ]
    choices = [(indices, weights.to(dtype)) for weights, indices in chosen]
    calls: dict[str, Callable[[], Any]] = {}
    read: dict[str, float] = {}
    for name, module in modules.items():
        if (name == "batched_mm") != (case == "token") and name in (GROUPED, "batched_mm"):
            continue  # it is slow or copies the weights
        if case == "step":
            if name != INT4:
                calls[name] = _step(module, x, choices, grad)
            continue
        held = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
        read[name] = held * min(sizes.active * tokens, sizes.experts) / sizes.experts
        needed = -(-total // held)
        calls[name] = _forward([module, *(copy.deepcopy(module) for _ in range(needed - 1))],
                               x, choices)  # fmt: skip
    if case == "prefill":
        calls[DENSE] = _dense(sizes, dtype)
    return calls, read


def _forward(
    modules: Sequence[nn.Module], x: Tensor, choices: Sequence[tuple[Tensor, Tensor]]
) -> Callable[[], Any]:
    turns = zip(itertools.cycle(modules), itertools.cycle(choices))

    @torch.no_grad()
    def call() -> Any:
        module, choice = next(turns)
        return module(x, *choice)

    return call


def _step(
    module: nn.Module, x: Tensor, choices: Sequence[tuple[Tensor, Tensor]], grad: Tensor
) -> Callable[[], Any]:
    turns = itertools.cycle(choices)
    x = x.clone().requires_grad_()

    def call() -> Any:
        indices, weights = next(turns)
        weights = weights.detach().requires_grad_()
        out = module(x, indices, weights)
        return torch.autograd.grad(out, (x, weights, *module.parameters()), grad)

    return call


def _dense(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Any]:
    """Two products with as many rows as tokens and experts of each make pairs."""
    rows = sizes.tokens * sizes.active
    x = torch.randn(rows, sizes.width).to(dtype)
    between = torch.randn(rows, sizes.between).to(dtype)
    up = torch.randn(2 * sizes.between, sizes.width).to(dtype)
    down = torch.randn(sizes.width, sizes.between).to(dtype)
    return torch.no_grad()(lambda: (F.linear(x, up), F.linear(between, down)))


def judge(
    case: str, dtype: str, sizes: Sizes, times: dict[str, float], roofs: dict[str, float]
) -> Iterator[Cell]:
    """A cell of each way that is a mixture's."""
    tokens = 1 if case == "token" else sizes.tokens
    for name, own in times.items():
        if name in (READ, DENSE):
            continue
        baselines = {b: times[b] for b in (EAGER, GROUPED, DENSE) if b in times}
        reached = {b: seconds / own for b, seconds in baselines.items()}
        roof = roofs.get(name, 0.0)
        reached |= {READ: roof / own} if READ in times else {}
        wanted = expert_goals(case) if name in (OWN, INT4) else {}
        yield Cell(
            name=name,
            case=f"{case} {tokens}x{sizes.active}/{sizes.experts}x{sizes.width}",
            dtype=dtype,
            threads=torch.get_num_threads(),
            direction="fwd+bwd" if case == "step" else "fwd",
            seconds=own,
            baselines=baselines,
            roof=roof if READ in times else 0.0,
            flops=(3 if case == "step" else 1) * 2 * tokens * sizes.active * sizes.weights,
            goals=judged({b: least for b, least in wanted.items() if b in reached}, reached),
        )


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each case: speed relative to transformers' loop."""
    found: Panels = {}
    for cell in measured:
        if cell.name != EAGER:
            series = found.setdefault(f"{cell.case} against {EAGER}", {})
            series.setdefault(cell.dtype, {})[cell.name] = cell.ratio(EAGER)
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Medians of interleaved calls in one process. `case`: tokens x experts of each token / all "
        "experts x features, which are as many between the layers. Each call takes other experts, "
        f"drawn at random. `{EAGER}`, `{GROUPED}` and `batched_mm`: the implementations of "
        f'transformers. `{INT4}`: `quantize_(model, "int4")`. `step`: forward, and the gradients '
        "of x, of the experts' weights and of the weights of all layers. `x dense`: the time of "
        "two products by `F.linear` with as many rows as there are pairs of a token and an expert, "
        "relative to the time of the call. `of read`: the bytes of the weights that the call needs "
        f"per second, relative to the read bandwidth of `torch.dot` over {options.megabytes} MB."
    )


def _versus(name: str, title: str) -> Column:
    return Column(
        title, 7, lambda cell: f"{cell.ratio(name):.2f}" if name in cell.baselines else "-"
    )


TABLE = Table(
    title="Experts of a mixture",
    columns=(
        Column("experts", -14, lambda cell: cell.name),
        Column("case", -22, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("ms", 9, lambda cell: f"{cell.seconds * 1e3:.3f}"),
        Column("GFLOP/s", 8, lambda cell: f"{cell.flops / cell.seconds / 1e9:.1f}"),
        _versus(EAGER, "x eager"),
        _versus(GROUPED, "x g_mm"),
        _versus(DENSE, "x dense"),
        Column("of read", 7, lambda cell: f"{cell.of_roof:.0%}" if cell.roof else "-"),
        Column(
            "goals",
            -1,
            lambda cell: ", ".join(
                f"{goal} {'met' if met else 'missed'}" for goal, met in cell.goals.items()
            ),
        ),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
