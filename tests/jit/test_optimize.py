"""`fusewheel.jit.optimize`: what is replaced, that values stay, and what is refused."""

from __future__ import annotations

import io
import logging

import fusewheel_cpu
import pytest
import torch
import torch.nn.functional as F
from fusewheel import jit
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager
from torch import Tensor, nn

from .nets import REPLACED, as_torchscript, decoder, inputs

# Both ways lead to one graph: a change takes them in turns.
SCRIPTED = pytest.mark.parametrize("how", ["script", pytest.param("trace", marks=NIGHTLY)])
TRACED = pytest.mark.parametrize("how", [pytest.param("script", marks=NIGHTLY), "trace"])


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ("script", torch.bfloat16),
        ("trace", torch.float32),
        pytest.param("script", torch.float32, marks=NIGHTLY),
        pytest.param("trace", torch.bfloat16, marks=NIGHTLY),
    ],
    ids=str,
)
def test_values_at_any_size(how, dtype, fused_in):
    model, exact = decoder(dtype), decoder(torch.float64)
    exact.load_state_dict(model.state_dict())
    example = inputs(dtype)
    optimized = jit.optimize(as_torchscript(model, how, example), example)
    assert {name: fused_in(optimized).get(name) for name in REPLACED} == REPLACED
    for sizes in ((2, 6), (3, 9)):
        given = inputs(dtype, *sizes)
        wide = [value.double() for value in given]
        assert_program_as_good_as_eager(optimized(*given), model(*given), exact(*wide), f"{sizes}")


@SCRIPTED
def test_the_fused_part_runs_and_covers_other_sizes(how):
    """The fused part is broken on purpose: where it runs shows in the values."""
    from fusewheel.jit.entry import lowered
    from fusewheel.jit.guarded import guarded

    model, example = decoder(), inputs()
    found = lowered(as_torchscript(model, how, example), example)
    zeros = torch.jit.freeze(torch.jit.script(_Zeros().eval()))
    arguments = zeros._c._get_method("forward").schema.arguments[1:]
    marked = guarded(zeros, found.original, arguments, found.assumptions)
    for sizes in ((2, 6), (3, 9), (7, 2)):
        assert not marked(*inputs(torch.float32, *sizes)).any()
    for name, other in _unlike_the_example().items():
        assert marked(*other).any(), name
    with torch.autocast("cpu", torch.bfloat16):
        assert marked(*example).any()


class _Zeros(nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.zeros_like(x)


def _unlike_the_example() -> dict[str, tuple[Tensor, ...]]:
    x, cos, sin = inputs()
    with torch.enable_grad():
        trained = x.clone().requires_grad_()
    return {
        "size of 1": inputs(torch.float32, 2, 1),
        "another batch": (x, cos[:1], sin[:1]),
        "gaps": (torch.cat([x, x], -1)[..., :32], cos, sin),
        "a gradient": (trained, cos, sin),
    }


@TRACED
def test_inputs_unlike_the_example_give_what_the_original_gives(how):
    model, example = decoder(), inputs()
    script = as_torchscript(model, how, example)
    optimized = jit.optimize(script, example)
    for name, other in _unlike_the_example().items():
        want = torch.jit.freeze(script)(*other)
        assert torch.equal(optimized(*other), want), name
    with torch.autocast("cpu", torch.bfloat16):
        assert optimized(*example).dtype == model(*example).dtype


def test_gradients_of_inputs_are_pytorchs_own():
    model, example = decoder(), inputs()
    optimized = jit.optimize(torch.jit.script(model), example)
    gradients = []
    for run in (model, optimized):
        x = example[0].clone().requires_grad_()
        with torch.enable_grad():
            run(x, *example[1:]).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.matrix
def test_saved_it_runs_in_a_process_with_the_library_alone(tmp_path, fresh):
    model, example = decoder(), inputs()
    optimized = jit.optimize(torch.jit.script(model), example)
    torch.jit.save(optimized, str(tmp_path / "model.pt"))
    given = inputs(torch.float32, 3, 4)
    torch.save((given, optimized(*given)), tmp_path / "values.pt")
    out = fresh(
        "import sys, torch\n"
        f"torch.ops.load_library({str(fusewheel_cpu.library)!r})\n"
        "model = torch.jit.load('model.pt')\n"
        "given, want = torch.load('values.pt')\n"
        "with torch.no_grad():\n"
        "    got = [model(*given) for _ in range(4)]\n"  # the optimising executor's runs too
        "print(all(torch.equal(g, want) for g in got), 'fusewheel' in sys.modules)\n"
        "print(str(model.inlined_graph).count('fusewheel::add_rms_norm'))"
    )
    assert out.split() == ["True", "False", "2"]


def test_saved_it_holds_each_weight_once():
    model = decoder()
    sizes = []
    for module in (torch.jit.freeze(torch.jit.script(model)), jit.optimize(model, inputs())):
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        sizes.append(buffer.tell())
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert sizes[1] - sizes[0] < weights / 4


class _Choices(nn.Module):
    """Branches on what the example decides, a loop, a list and a write in place."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0, steps: int = 2
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        y = self.norm(x)
        y = F.gelu(y) * x if x.size(1) > 3 else F.silu(y) * x
        for _ in range(steps):
            y = y * scale
        parts: list[Tensor] = []
        for part in y.chunk(2, -1):
            parts.append(part)
        kept = y + 1.0
        kept.add_(2.0)
        return torch.cat(parts, -1), {"kept": kept}


@pytest.mark.parametrize(
    ("example", "replaced"),
    [
        ((torch.ones(2, 5, 16),), {"layer_norm": 1, "gelu_mul": 1}),
        ((torch.ones(2, 3, 16),), {"layer_norm": 1, "silu_mul": 1}),
        ((torch.ones(2, 5, 16), torch.ones(2, 5)), {"layer_norm": 1, "gelu_mul": 1}),
        ({"x": torch.ones(2, 3, 16), "scale": 2.0}, {"layer_norm": 1, "silu_mul": 1}),
    ],
    ids=["gelu", "silu", "mask", "keywords"],
)
def test_branches_follow_the_example(example, replaced, fused_in):
    model = _Choices().eval()
    optimized = jit.optimize(torch.jit.script(model), example)
    assert fused_in(optimized) == replaced
    calls = ({}, {"mask": torch.rand(2, 5)}, {"scale": 2.0}, {"steps": 0})
    for length in (5, 3):
        for options in calls:
            if length == 3 and "mask" in options:
                continue
            x = torch.randn(2, length, 16)
            got, want = optimized(x, **options), model(x, **options)
            torch.testing.assert_close(got, want)


def test_layers_of_a_vision_transformer(fused_in):
    layer = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval()
    x = torch.randn(2, 5, 16)
    optimized = jit.optimize(layer, x)
    assert fused_in(optimized) == {"layer_norm": 1, "gelu": 1}
    torch.testing.assert_close(optimized(x), layer(x))


def test_a_traced_module_needs_no_example(fused_in):
    traced = torch.jit.trace(decoder(), inputs())
    assert fused_in(jit.optimize(traced)) == REPLACED


def test_what_cannot_be_scripted_is_traced(fused_in):
    class Wild(nn.Module):
        def forward(self, *x, **options):
            return F.silu(x[0]) * x[1]

    given = torch.randn(3, 4), torch.randn(3, 4)
    optimized = jit.optimize(Wild().eval(), given)
    assert fused_in(optimized) == {"silu_mul": 1}
    with pytest.raises(ValueError, match=r"Wild cannot be scripted.*needs example_inputs"):
        jit.optimize(Wild().eval())


def test_nothing_recognised_gives_the_frozen_module(fused_in):
    model = nn.Linear(4, 4).eval()
    optimized = jit.optimize(model, torch.randn(2, 4))
    assert not fused_in(optimized)
    x = torch.randn(3, 4)
    assert torch.equal(optimized(x), model(x))


def test_an_interior_value_that_is_used_elsewhere_is_refused():
    class Shared(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            gate = F.silu(x)
            return gate * y, gate

    given = torch.randn(3, 4), torch.randn(3, 4)
    report = jit.explain(Shared().eval(), given)
    assert not report.count()
    assert any("used" in refusal.reason for refusal in report.refusals)
    assert all(refusal.source != "<unknown>" for refusal in report.refusals)


def test_a_write_to_an_input_is_refused():
    class Writes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x.add_(1.0)
            return F.silu(x) * y

    model = Writes().eval()
    given = torch.randn(3, 4), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="writes to an input in place"):
        optimized = jit.optimize(model, given)
    x = torch.randn(3, 4)
    assert torch.equal(optimized(x, x), F.silu(x) * x)


def test_a_list_that_is_changed_through_another_list():
    class Appends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inner = [x]
            outer = [inner, [x]]
            outer[0].append(F.silu(x) * x)
            return torch.cat(inner, -1)

    model = Appends().eval()
    x = torch.randn(3, 4)
    optimized = jit.optimize(torch.jit.script(model), x)
    torch.testing.assert_close(optimized(x), model(x))
    assert optimized(x).shape == (3, 8)


def test_a_cast_that_the_example_made_idle_is_not_forgotten():
    """In float32 the cast does nothing; in bfloat16 it says what the product is computed in."""

    class Widens(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.silu(x.float()) * y.float()

    model = Widens().eval()
    optimized = jit.optimize(model, (torch.randn(3, 4), torch.randn(3, 4)))
    x, y = (torch.randn(3, 4).bfloat16() for _ in range(2))
    assert torch.equal(optimized(x, y), model(x, y))
    assert optimized(x, y).dtype == torch.float32


def test_training_mode_is_refused():
    for model in (decoder().train(), torch.jit.script(decoder().train())):
        with pytest.raises(ValueError, match=r"training mode.*call module\.eval\(\) first"):
            jit.optimize(model, inputs())


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((torch.ones(2, 6, 32),), r"lacks \['cos', 'sin'\]"),
        ((*inputs(), 1), "a value number 4 too"),
        ({"cos": torch.ones(2), "wrong": 1}, "'wrong' too"),
    ],
)
def test_an_example_that_does_not_fit(example, message):
    with pytest.raises(ValueError, match=message):
        jit.optimize(torch.jit.script(decoder()), example)


def test_no_module_is_refused():
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module .* got function"):
        jit.optimize(lambda x: x)  # type: ignore[arg-type]


def test_without_an_example_a_warning_says_so(fused_in):
    with pytest.warns(UserWarning, match="example_inputs are needed"):
        optimized = jit.optimize(torch.jit.script(decoder()))
    assert not fused_in(optimized)
    assert optimized(*inputs()).shape == (2, 6, 32)


def test_a_failing_rewrite_leaves_the_module(monkeypatch, caplog):
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT")
    monkeypatch.setattr("fusewheel.jit.lower.replay", lambda *_: 1 / 0)
    model = decoder()
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="rewrite failed"):
        optimized = jit.optimize(model, inputs())
    torch.testing.assert_close(optimized(*inputs()), model(*inputs()))


@pytest.mark.matrix
def test_python_without_torchscript(monkeypatch):
    monkeypatch.setattr("sys.version_info", (3, 14, 0, "final", 0))
    with pytest.raises(jit.TorchScriptError, match=r"not support TorchScript on Python 3\.14.*ex"):
        jit.optimize(decoder(), inputs())
    with pytest.raises(jit.TorchScriptError, match=r"not support TorchScript on Python 3\.14.*ex"):
        jit.enable()


def test_importing_it_is_light(fresh):
    out = fresh(
        "import sys, fusewheel.jit\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'sympy', 'fusewheel.compiler.lower.engine'}\n"
        "print(heavy & set(sys.modules) or 'light')"
    )
    assert out == "light\n"


def test_an_input_of_any_name(fused_in):
    class Named(nn.Module):
        def forward(self, probe: Tensor, original: Tensor) -> Tensor:
            return F.silu(probe) * original

    x, y = torch.randn(2, 3, 8)
    module = jit.optimize(torch.jit.script(Named().eval()), (x, y))
    assert fused_in(module) == {"silu_mul": 1}
    torch.testing.assert_close(module(x, y), F.silu(x) * y)
