import pytest
import torch
from fusewheel.quantization import calibrate
from torch import nn


def model():
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU())


def hooks(net):
    return sum(len(m._forward_pre_hooks) for m in net.modules())


def test_mean_squares_over_all_batches():
    net, batches = model(), [torch.randn(5, 8), torch.randn(2, 3, 8)]
    found = calibrate(net, lambda m: [m(b) for b in batches])
    rows = torch.cat([b.reshape(-1, 8) for b in batches])
    torch.testing.assert_close(found["0"], rows.square().mean(0))
    torch.testing.assert_close(found["2"], net[0](rows).relu().square().mean(0).detach())
    assert hooks(net) == 0


def test_low_precision_inputs_do_not_overflow():
    net = nn.Linear(4, 4).half()
    found = calibrate(net, lambda m: m(torch.full((3, 4), 1000.0).half()))
    assert found[""].tolist() == [1e6] * 4


def test_the_filter_and_layers_without_input():
    net = model()
    net.unused = nn.Linear(3, 3)
    found = calibrate(net, lambda m: nn.Sequential(*list(m)[:4])(torch.ones(1, 8)))
    assert set(found) == {"0", "2"}
    found = calibrate(net, lambda m: m[2](input=torch.ones(1, 6)), lambda _, name: name == "2")
    assert set(found) == {"2"}
    assert calibrate(net, lambda m: m[0](torch.ones(0, 8))) == {}


def test_hooks_are_removed_after_an_error():
    net = model()
    with pytest.raises(ZeroDivisionError):
        calibrate(net, lambda m: 1 // 0)
    assert hooks(net) == 0


def test_nothing_is_recorded_for_gradients():
    net = model()
    seen = []
    calibrate(net, lambda m: seen.append(m(torch.ones(1, 8))))
    assert not seen[0].requires_grad
