"""Random programs that write in place, run eagerly and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fusewheel
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

SHAPE = (4, 8)

# What a write goes to, what comes to it, and the writes.
VIEWS = (
    *("{}", "{}[1:]", "{}[..., ::2]", "{}.transpose(0, -1)", "{}.view(2, 2, 8)", "{}.diagonal()"),
    *("{}.flatten()", "{}.chunk(2)[1]", "{}.detach()", "{}.clone()", "{} * 1"),
)
NUMBERS = ("torch.tensor(0.5).double()", "w.sum()", "y.mean()", "w.detach().sum()")
TENSORS = ("t * 2", "t.detach()", "y.reshape(-1)[:t.numel()].view_as(t)", "torch.ones_like(t)")
WRITES = (
    *("t[0] = 0", "t[..., 1:] = {number}", "t[t > 0] = {number}", "t[...] = {tensor}"),
    *("t.copy_({tensor})", "t.add_({tensor})", "t.mul_(2)", "t.zero_()", "t += {tensor}"),
    *("t.index_put_((torch.tensor([0]),), {number})", "t.index_fill_(0, torch.tensor([0]), 0.5)"),
    "t.scatter_(0, torch.zeros_like(t, dtype=torch.int64), 0.5)",
    *("t.masked_fill_(t > 0, {number})", "F.relu(t, inplace=True)", "x.detach_()"),
    *("torch.add({tensor}, 1, out=t)", "torch.ops.aten.mul_.Tensor(t, {tensor})"),
    "fusewheel.rope_(x.view(1, 1, 4, 8), cos, sin)",
    *("fusewheel.add_out(t, {tensor}, out=t)", "torch._foreach_add_([t], [{tensor}])"),
)
REGIONS = (
    None,
    "with torch.no_grad():",
    "with torch.enable_grad():",
    "with torch.no_grad(), torch.enable_grad():",
    "def part(t):",
)
RESULTS = ("None", "torch.ones(3)", "x", "t", "x * w", "F.silu(x) * y", "(y, t)", "before")


@dataclass(frozen=True)
class Program:
    """Where the inputs come from, the lines of a function of them, and how it is called."""

    x: str
    y: str
    lines: tuple[str, ...]
    inner: str
    grad: bool

    def __str__(self) -> str:
        body = "\n".join(f"    {line}" for line in self.lines)
        return (
            f"x: {self.x}; y: {self.y}; gradients {'on' if self.grad else 'off'}; "
            f"inner: {self.inner}\ndef function(x, y, w, cos, sin):\n{body}"
        )

    def function(self) -> Callable[..., Any]:
        """The function, made anew."""
        names: dict[str, Any] = {
            "torch": torch,
            "F": F,
            "fusewheel": fusewheel,
            "checkpoint": checkpoint,
        }
        exec(str(self).partition("\n")[2], names)
        function: Callable[..., Any] = names["function"]
        return function

    def run(self, backend: str | None = None) -> dict[str, Any]:
        """All that a caller can see of a call, gradients included; or that it raised."""
        torch.compiler.reset()
        generator = torch.Generator().manual_seed(0)
        leaves, inputs = self._inputs(generator)
        function = self.function()
        if backend is not None:
            options = {"inner": self.inner} if backend == "fusewheel" else None
            function = torch.compile(function, backend=backend, options=options)
        try:
            with torch.set_grad_enabled(self.grad):
                results = function(*inputs)
            return _seen(results, inputs, leaves, generator)
        except Exception as error:  # Dynamo's own may be of any kind
            return {"raised": error}

    def _inputs(self, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
        leaves = [
            torch.randn(SHAPE, generator=generator, dtype=torch.float64).requires_grad_(kind)
            for kind in (self.x != "constant", self.y in ("leaf", "computed"))
        ]
        w, *tables = torch.rand(9, 8, generator=generator, dtype=torch.float64).split([1, 4, 4])
        leaves.append(w[0].clone().requires_grad_())
        x, y = (
            leaf * 2 if kind == "computed" else leaf
            for leaf, kind in zip(leaves, (self.x, self.y), strict=False)
        )
        aliases = {"x": x, "view of x": x.view(SHAPE), "detached x": x.detach()}
        return leaves, [x, aliases.get(self.y, y), leaves[2], *tables]


def _seen(
    results: Any, inputs: list[Tensor], leaves: list[Tensor], generator: torch.Generator
) -> dict[str, Any]:
    outputs = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
    everything = [*outputs, *inputs]
    trained = [tensor for tensor in everything if tensor.requires_grad]
    seen: dict[str, Any] = {
        "values": [tensor.detach().clone() for tensor in everything],
        "require a gradient": [tensor.requires_grad for tensor in everything],
        "versions": [tensor._version for tensor in inputs],
    }
    weights = (torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in trained)
    total = sum((t * weight).sum() for t, weight in zip(trained, weights, strict=True))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    seen["gradients"] = torch.autograd.grad(total, wanted, allow_unused=True)
    return seen


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """One to three writes, each to a view, in a region, of a value."""
    pick = lambda options: draw(st.sampled_from(options))  # noqa: E731
    lines = ["before = x.sin()"] if draw(st.booleans()) else ["before = x"]
    for _ in range(draw(st.integers(1, 3))):
        view = pick(VIEWS).format(pick("xxy"))
        write = pick(WRITES).format(number=pick(NUMBERS), tensor=pick(TENSORS))
        # In a compiled checkpoint PyTorch does not count the writes of `_foreach` in versions.
        region = pick(REGIONS[:-1] if "_foreach" in write else REGIONS)
        lines.append(f"t = {view}")
        if region is None:
            lines.append(write)
        elif region.startswith("def"):
            part = [region, f"    {write}", "    return torch.ones(3)"]
            lines += [*part, "checkpoint(part, t, use_reentrant=False)"]
        else:
            lines += [region, f"    {write}"]
    lines.append(f"return {pick(RESULTS)}")
    kinds = ("computed", "computed", "constant")
    return Program(
        x=pick(kinds),
        y=pick((*kinds, "x", "view of x", "detached x")),
        lines=tuple(lines),
        inner=pick(("none", "eager")),
        grad=pick((True, True, True, False)),
    )


def check(program: Program) -> str:
    """Compares a program compiled with itself; says how it went."""
    with warnings.catch_warnings():
        # Dynamo looks at it where an argument is no leaf.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        expected, actual = program.run(), program.run("fusewheel")
        if "raised" in actual and "raised" not in expected:
            # Dynamo cannot capture it. It says so, which makes no result wrong.
            expected = program.run("eager")
    assert actual.keys() == expected.keys(), f"{program}\n{actual}"
    if "raised" in expected:
        return "raised"
    torch.testing.assert_close(actual, expected, msg=lambda text: f"{program}\n{text}")
    return "ran"
