import copy

import fusewheel
import pytest
import torch
from fusewheel.quantization import (
    LinearInt4,
    LinearInt8,
    Skip,
    calibrate,
    dequantize_int4,
    quantize_int4,
)
from torch import nn


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size, bias=False)
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Language(nn.Module):
    """An embedding tied to the output layer around two blocks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


TOKENS = torch.arange(30).view(3, 10)


@pytest.mark.parametrize(
    ("kind", "group_size", "layer"),
    [
        ("int4", 32, LinearInt4),
        ("int4", 64, LinearInt4),
        ("int8", 32, LinearInt8),
        ("int8", None, LinearInt8),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_linear_layer_is_replaced(kind, group_size, layer, dynamic):
    torch.manual_seed(0)
    model = Language()
    before = model(TOKENS)
    report = fusewheel.quantize_(model, kind, group_size, dynamic=dynamic)
    names = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]
    assert [swap.name for swap in report.swapped] == names and report.skipped == ()
    for name in names:
        module = model.get_submodule(name)
        assert type(module) is layer and module.group_size == group_size
        assert module.dynamic == dynamic
    error = (model(TOKENS) - before).norm() / before.norm()
    assert error < (0.2 if kind == "int4" else 0.02)


@pytest.mark.matrix
def test_the_report():
    model = Language()
    state = model.state_dict()
    # The tied weight is in there twice.
    bytes_before = sum(t.nbytes for n, t in state.items() if n != "head.weight")
    report = fusewheel.quantize_(model, filter_fn=lambda module, name: name != "blocks.1.up")
    assert report.bytes_before == bytes_before
    assert report.bytes_after == sum(t.nbytes for t in model.state_dict().values())
    assert report.skipped == (Skip("blocks.1.up", "the filter says no"),)
    swap = report.swapped[0]
    assert swap.bytes_before == 128 * 64 * 4 + 128 * 4
    assert swap.bytes_after == 128 * 64 // 2 + 2 * 128 * 2 * 2 + 128 * 4
    text = str(report)
    assert text.startswith("4 linear layers in int4, 0 of them calibrated: 0.")
    assert "left alone, the filter says no: blocks.1.up" in text


def test_a_tied_embedding_keeps_its_weight():
    model = Language()
    weight = model.embed.weight
    value = weight.detach().clone()
    fusewheel.quantize_(model)
    assert model.embed.weight is weight and torch.equal(weight, value)
    assert isinstance(model.head, LinearInt4) and "head.weight" not in dict(
        model.named_parameters()
    )


def test_a_shared_layer_stays_shared():
    shared = nn.Linear(32, 32)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Sequential(shared))
    report = fusewheel.quantize_(model)
    assert [swap.name for swap in report.swapped] == ["0"]
    assert model[0] is model[2] is model[3][0] and isinstance(model[0], LinearInt4)


def test_what_cannot_be_replaced_is_left_alone_with_a_reason():
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "own": Own(64, 64),
            "odd": nn.Linear(48, 64),
            "parametrized": nn.utils.parametrizations.orthogonal(nn.Linear(64, 64)),
            "hooked": nn.Linear(64, 64),
            "replaced": nn.Linear(64, 64),
            "complex": nn.Linear(64, 64, dtype=torch.complex64),
            "attention": nn.MultiheadAttention(64, 2),
            "encoder": nn.TransformerEncoderLayer(64, 2, 64, batch_first=True),
            "more": nn.Linear(64, 64),
        }
    )
    model["hooked"].register_forward_hook(lambda *_: None)
    model["replaced"].forward = lambda x: x
    model["more"].register_buffer("extra", torch.ones(1))
    before = {name: type(module) for name, module in model.named_modules()}
    report = fusewheel.quantize_(model)
    assert report.swapped == ()
    assert {name: type(module) for name, module in model.named_modules()} == before
    reasons = {skip.name: skip.reason for skip in report.skipped}
    for name, reason in {
        "own": "subclass of Linear, Own",
        "odd": "48 in features are not a multiple of 32",
        "parametrized": "parametrized",
        "hooked": "hooks",
        "replaced": "forward was replaced",
        "complex": "complex64",
        "attention.out_proj": "NonDynamicallyQuantizableLinear",
        "encoder.linear1": "parent reads the weight",
        "more": "more than a weight",
    }.items():
        assert reason in reasons[name]
    model["encoder"].eval()(torch.randn(1, 3, 64))


def test_bad_arguments_are_refused_before_anything_changes():
    model = Language()
    for arguments, message in (
        ({"kind": "int2"}, "kind must be one of 'int4', 'int8', 'nf4', .*, got 'int2'"),
        ({"kind": "nf4", "group_size": 32}, "group_size must be 64 for nf4, got 32"),
        ({"kind": "mxfp4", "dynamic": True}, "dynamic is for kinds 'int4' and 'int8' only"),
        ({"kind": "int8", "group_size": "64"}, "group_size must be a multiple of 32, got 64"),
        ({"group_size": 48}, "group_size must be 32, 64 or 128, got 48"),
        ({"group_size": None}, "got None"),
        ({"kind": "int8", "group_size": 40}, "multiple of 32, got 40"),
        ({"kind": "int8", "calibration": {}}, "for kind 'int4' only"),
        ({"calibration": {"nowhere": torch.ones(64)}}, r"lacks: \['nowhere'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            fusewheel.quantize_(model, **arguments)
    with pytest.raises(ValueError, match="must contain linear layers"):
        fusewheel.quantize_(nn.Linear(64, 64))
    assert not any(isinstance(m, LinearInt4) for m in model.modules())


def test_a_weight_with_nan_is_refused_by_the_name_of_its_layer():
    model = Language()
    model.blocks[1].up.weight.data[3, 4] = float("nan")
    with pytest.raises(ValueError, match=r"layer 'blocks\.1\.up': .* NaN or infinity in row 3"):
        fusewheel.quantize_(model)


def test_calibrated_layers_err_less_on_such_inputs():
    torch.manual_seed(0)
    model = Language()
    with torch.no_grad():
        # Features of very different size, as those of trained transformers are.
        for block in model.blocks:
            block.norm.weight.mul_(torch.logspace(-2, 1, 64)[torch.randperm(64)])
    exact = model(TOKENS)
    calibration = calibrate(model, lambda m: m(TOKENS))
    errors = []
    for known in (None, calibration):
        quantized = copy.deepcopy(model)
        report = fusewheel.quantize_(quantized, calibration=known)
        assert all(swap.calibrated == (known is not None) for swap in report.swapped)
        errors.append((quantized(TOKENS) - exact).norm())
    assert errors[1] < 0.9 * errors[0]


def test_calibration_reaches_the_layer():
    model = Language()
    weight = model.blocks[0].up.weight.detach().clone()
    importance = torch.rand(64)
    fusewheel.quantize_(model, calibration={"blocks.0.up": importance})
    layer = model.blocks[0].up
    got = dequantize_int4(layer.qweight, layer.scales, layer.zeros)
    assert torch.equal(got, dequantize_int4(*quantize_int4(weight, 32, importance)))


@pytest.mark.matrix
def test_a_skeleton_on_meta_takes_the_state_of_a_quantized_model():
    model = Language().eval()
    fusewheel.quantize_(model)
    with torch.device("meta"):
        skeleton = Language().eval()
    report = fusewheel.quantize_(skeleton)
    assert len(report.swapped) == 5
    skeleton.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(skeleton(TOKENS), model(TOKENS))


@pytest.mark.matrix
def test_it_compiles_in_one_graph():
    model = Language()
    fusewheel.quantize_(model)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(TOKENS), model(TOKENS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_of_the_rest_may_change_before_or_after(dtype):
    torch.manual_seed(0)
    model = Language()
    exact = model(TOKENS)
    early, late = copy.deepcopy(model).to(dtype), model
    fusewheel.quantize_(early)
    fusewheel.quantize_(late)
    late.to(dtype)
    for quantized in (early, late):
        y = quantized(TOKENS)
        assert y.dtype == dtype and (y.float() - exact).norm() < 0.2 * exact.norm()
