"""The installed layer beside the same formula in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from gated_mlp import GatedMLP, gated_mlp
from torch import Tensor


def written_out(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


def arguments(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (2, 5, 16), (2 * 24, 16), (16, 24)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_values_and_gradients(way: Callable[..., Callable[..., Tensor]]) -> None:
    ours, theirs = arguments(), arguments()
    y, expected = way(gated_mlp)(*ours), written_out(*theirs)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_the_operator_is_registered_as_it_should_be() -> None:
    torch.library.opcheck(gated_mlp, arguments(torch.float64))


def test_only_the_input_is_kept() -> None:
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    x, gate_up, down = arguments()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gated_mlp(x, gate_up, down)
    assert kept == [tuple(x.shape), tuple(gate_up.shape), tuple(down.shape)]


def test_the_module_is_trained_and_saved() -> None:
    torch.manual_seed(0)
    layer, x, target = GatedMLP(8, 32), torch.randn(64, 8), torch.randn(64, 8)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(layer(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    other = GatedMLP(8, 32)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
