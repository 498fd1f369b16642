"""Uses most of fusewheel, without any name of torch that it has a fallback for.

Prints these names, as JSON.
"""

import importlib.util
import json
import sys
import warnings


class Fallbacks:
    """All names that have a fallback; and those that were asked for."""

    def __init__(self):
        self.looked_up, self.asked = {}, set()

    def __contains__(self, path):
        has = self.looked_up[path].fallback
        if has:
            self.asked.add(path)
        return has


HIDDEN = Fallbacks()


class Hide:
    """Hides the names as soon as the module that looks them up is there."""

    def find_spec(self, name, path, target=None):
        if name != "fusewheel._torch.find" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.hidden, HIDDEN.looked_up = HIDDEN, module.looked_up

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Hide())

import fusewheel  # noqa: E402
import torch  # noqa: E402


def block(x, weight):
    y = fusewheel.rms_norm(x, 8, weight)
    return torch.nn.functional.silu(y) * y


def slopes(function, x, weight):
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    function(x, weight).square().sum().backward()
    return x.grad, weight.grad


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x) * (x + 1)


def main() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 8), torch.rand(8)
    expected = block(x, weight)
    gradients = slopes(block, x, weight)

    # Eager: gradients, forward mode, transforms, autocast, writes in place, checkpoints.
    torch.func.jvp(block, (x, weight), (x, weight))
    per_sample = torch.func.vmap(block, (0, None))(x, weight)
    torch.testing.assert_close(per_sample, expected)
    with torch.autocast("cpu", torch.bfloat16):
        fusewheel.silu_mul(x, x.bfloat16())
    fusewheel.add_out(x, x, out=torch.empty_like(x))
    again = torch.utils.checkpoint.checkpoint(block, x, weight, use_reentrant=False)
    torch.testing.assert_close(again, expected)
    target = torch.tensor([0, 1, 2])
    head = torch.randn(5, 8, requires_grad=True)
    fusewheel.linear_cross_entropy(x, head, target).backward()

    # Compiled, with two inner compilers, and again after a pattern is switched off.
    for inner in ("none", "aot_eager"):
        run = torch.compile(block, backend="fusewheel", options={"inner": inner})
        torch.testing.assert_close(run(x, weight), expected)
        torch.testing.assert_close(slopes(run, x, weight), gradients)
        with fusewheel.compiler.disable("silu_mul"):
            torch.testing.assert_close(run(x, weight), expected)

    # Exported, and TorchScript where this Python has it.
    program = fusewheel.export(Net(), (x,))
    torch.testing.assert_close(program.module()(x), Net()(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(Net().eval(), (x,))
        fused = fusewheel.jit.optimize(script, (x,))
        with torch.no_grad():
            torch.testing.assert_close(fused(x), Net()(x))

    # The doctor says what it cannot try.
    (outcome,) = fusewheel.doctor.check(
        torch.ops.aten.sin.default, [torch.ones(3, 4)], columns=["dispatch mode"], isolate=False
    ).outcomes
    assert outcome.status is fusewheel.doctor.Status.NOT_APPLICABLE, outcome
    assert outcome.reason == "this torch has no modes with __torch_dispatch__"

    print(json.dumps(sorted(HIDDEN.asked)))


main()
