"""What a rewrite keeps up to date about writes and shared memory is what a new look would find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusewheel.compiler.entry import caches
from fusewheel.compiler.ir.effects import Effects
from fusewheel.compiler.match import rewrite
from torch import Tensor
from torch.fx import Graph


def _facts(effects: Effects) -> tuple[Any, ...]:
    sharing = {key: set(nodes) for key, nodes in effects._sharing.items() if nodes}
    return sharing, effects.writes


def _agrees(effects: Effects, graph: Graph) -> bool:
    return _facts(effects) == _facts(Effects(graph))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether both agreed, after each replacement."""
    found: list[bool] = []
    replace, apply = caches._replace, rewrite._Pass._apply

    def replaced(context: Any, *arguments: Any) -> None:
        replace(context, *arguments)
        found.append(_agrees(context.effects, context.graph))

    def applied(self: Any, match: Any) -> Any:
        result = apply(self, match)
        found.append(_agrees(self._context.effects, self._context.graph))
        return result

    monkeypatch.setattr(caches, "_replace", replaced)
    monkeypatch.setattr(rewrite._Pass, "_apply", applied)
    return found


def _two_caches(x: Tensor, keys: Tensor, values: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    other.add_(1)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * other
    heads = x.view(1, 3, 2, 8).transpose(1, 2)
    keys, values = torch.cat([keys, heads], 2), torch.cat([values, heads * 2], 2)
    flat = keys.transpose(2, 3).contiguous()
    flat.mul_(2)
    return keys, values, flat, x.add_(1)


def test_facts_are_kept_up_to_date(looks: list[bool]) -> None:
    arguments = torch.randn(1, 3, 16), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)

    def call(function: Any) -> Any:
        return function(*(a.clone() for a in arguments), torch.ones(16))

    with torch.no_grad():
        compiled = torch.compile(_two_caches, backend="fusewheel", options={"inner": "none"})
        torch.testing.assert_close(call(compiled), call(_two_caches))
    assert len(looks) == 3 and all(looks)
