import copy
import io
import pickle

import fusewheel
import pytest
import torch
from fusewheel.quantization import (
    LinearInt4,
    LinearInt8,
    dequantize_int4,
    dequantize_int8,
    quantize_int4,
    quantize_int8,
)
from safetensors import torch as safetensors
from torch import nn

LAYERS = [
    pytest.param(lambda linear, **more: LinearInt8.from_linear(linear, **more), id="int8"),
    pytest.param(lambda linear, **more: LinearInt8.from_linear(linear, 64, **more), id="int8g64"),
    pytest.param(lambda linear, **more: LinearInt4.from_linear(linear, **more), id="int4"),
    pytest.param(lambda linear, **more: LinearInt4.from_linear(linear, 128, **more), id="int4g128"),
]
layers = pytest.mark.parametrize("make", LAYERS)


def decoded(layer):
    if isinstance(layer, LinearInt8):
        return dequantize_int8(layer.qweight, layer.scales)
    return dequantize_int4(layer.qweight, layer.scales, layer.zeros, layer.group_size)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch.compiler.reset()


@pytest.mark.matrix
@layers
@pytest.mark.parametrize("bias", [False, True])
def test_it_takes_the_place_of_a_linear_layer(make, bias):
    linear = nn.Linear(256, 37, bias=bias)
    layer, x = make(linear), torch.randn(2, 3, 256)
    want = nn.functional.linear(x, decoded(layer), linear.bias)
    torch.testing.assert_close(layer(x), want)
    assert (layer(x) - linear(x)).abs().max() < 0.5
    assert (layer.in_features, layer.out_features) == (256, 37)
    assert layer.bias is linear.bias
    assert "weight" not in layer.state_dict()
    assert "in_features=256, out_features=37" in repr(layer) and "group_size" in repr(layer)


@layers
def test_dynamic_rounds_the_activations(make):
    linear, x = nn.Linear(256, 37), torch.randn(3, 256)
    exact, rounded = make(linear), make(linear, dynamic=True)
    assert rounded.dynamic and not exact.dynamic
    difference = (rounded(x) - exact(x)).abs().max()
    assert 0 < difference < 0.1


@layers
def test_the_mode_of_training_is_kept(make):
    assert not make(nn.Linear(256, 3).eval()).training and make(nn.Linear(256, 3)).training


@pytest.mark.matrix
@layers
@pytest.mark.parametrize("save", ["torch", "safetensors"])
def test_a_state_dict_goes_through_a_file(make, save, tmp_path):
    layer, x = make(nn.Linear(256, 37)), torch.randn(3, 256)
    path = tmp_path / "weights"
    if save == "torch":
        torch.save(layer.state_dict(), path)
        state = torch.load(path, weights_only=True)
    else:
        safetensors.save_file(layer.state_dict(), path)
        state = safetensors.load_file(path)
    fresh = make(nn.Linear(256, 37))
    assert not torch.equal(fresh(x), layer(x))
    fresh.load_state_dict(state)
    assert torch.equal(fresh(x), layer(x))
    skeleton = make(nn.Linear(256, 37, device="meta"))
    assert all(t.is_meta for t in skeleton.state_dict().values())
    skeleton.load_state_dict(state, assign=True)
    assert torch.equal(skeleton(x), layer(x))


@layers
def test_a_state_dict_brings_the_dtype_of_its_scales(make):
    linear = nn.Linear(256, 37)
    linear.weight.data *= 1e9
    layer, x = make(linear), torch.randn(3, 256)
    assert layer.scales.dtype == torch.float32
    for device in ("cpu", "meta"):
        fresh = make(nn.Linear(256, 37, device=device))
        fresh.load_state_dict(layer.state_dict(), assign=device == "meta")
        assert fresh.scales.dtype == torch.float32 and torch.equal(fresh(x), layer(x))


def test_another_group_size_does_not_load():
    layer, other = (LinearInt4.from_linear(nn.Linear(128, 3), size) for size in (32, 64))
    with pytest.raises(RuntimeError, match="size mismatch for scales"):
        layer.load_state_dict(other.state_dict())


@layers
@pytest.mark.parametrize("cast", ["half", "bfloat16", "double", "to"])
def test_a_cast_leaves_the_weight_alone(make, cast):
    layer = make(nn.Linear(256, 37))
    before = decoded(layer)
    layer = layer.to(torch.bfloat16) if cast == "to" else getattr(layer, cast)()
    assert torch.equal(decoded(layer), before)
    assert layer.scales.dtype == torch.float16 and layer.bias.dtype != torch.float32
    x = torch.randn(3, 256, dtype=layer.bias.dtype)
    assert layer(x).dtype == x.dtype


@layers
def test_devices_change_as_always(make):
    layer = make(nn.Linear(256, 37)).half()
    skeleton = copy.deepcopy(layer).to("meta", torch.float32)
    assert all(t.is_meta for t in skeleton.state_dict().values())
    assert skeleton.scales.dtype == torch.float16
    empty = skeleton.to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    x = torch.randn(3, 256)
    assert torch.equal(decoded(empty), decoded(layer)) and empty(x).shape == (3, 37)


@pytest.mark.matrix
@layers
def test_copies_and_pickles(make):
    layer, x = make(nn.Linear(256, 37)), torch.randn(3, 256)
    copied = copy.deepcopy(layer)
    assert copied.qweight.data_ptr() != layer.qweight.data_ptr()
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for again in (
        copied,
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ):
        assert torch.equal(again(x), layer(x))


@layers
def test_it_compiles_in_one_graph_and_trains(make):
    layer = make(nn.Linear(256, 37))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 256)
    torch.testing.assert_close(compiled(x), layer(x))
    gradients = []
    for module in (layer, compiled):
        inputs = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(module(inputs).square().sum(), (inputs, layer.bias)))
    torch.testing.assert_close(*gradients)


def test_a_new_layer_is_zero():
    for layer in (LinearInt8(64, 3), LinearInt8(64, 3, group_size=32), LinearInt4(64, 3)):
        assert torch.equal(layer(torch.randn(2, 64)), torch.zeros(2, 3))
    assert LinearInt4(64, 3, False, "meta").bias is None
    assert LinearInt4(64, 3, dtype=torch.float64).bias.dtype == torch.float64


def test_from_weight_holds_these_tensors():
    weight = quantize_int4(torch.randn(5, 128), 64)
    layer = LinearInt4.from_weight(weight, torch.ones(5))
    assert layer.qweight is weight.qweight and layer.group_size == 64
    x = torch.randn(2, 128)
    assert torch.equal(layer(x), fusewheel.linear_int4(x, *weight, bias=torch.ones(5)))
    int8 = quantize_int8(torch.randn(5, 128), 64)
    assert torch.equal(LinearInt8.from_weight(int8)(x), fusewheel.linear_int8(x, *int8))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="multiple of group_size, 64, got 96"):
        LinearInt4(96, 3, group_size=64)
    with pytest.raises(ValueError, match="must be 32, 64 or 128, got 48"):
        LinearInt4(96, 3, group_size=48)
    with pytest.raises(ValueError, match="multiple of 32 that divides in_features, 96, got 64"):
        LinearInt8(96, 3, group_size=64)


class Adapted(nn.Module):
    """A frozen quantised layer and a low-rank adapter that is trained."""

    def __init__(self, kind, taken, given):
        super().__init__()
        self.base = kind.from_linear(nn.Linear(taken, given)).requires_grad_(False)
        self.down, self.up = nn.Linear(taken, 4, bias=False), nn.Linear(4, given, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [LinearInt8, LinearInt4])
def test_low_rank_adapters_train_over_it(kind, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(kind, 64, 64), nn.ReLU(), Adapted(kind, 64, 16)).to(dtype)
    x = torch.randn(128, 64, dtype=dtype)
    target = x[:, :16].relu()
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-2)
    codes = {n: b.clone() for n, b in model.named_buffers()}
    losses = []
    for _ in range(100):
        loss = nn.functional.mse_loss(model(x).float(), target.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
    assert len(adapters) == 4
    assert all(torch.equal(b, codes[n]) for n, b in model.named_buffers())
