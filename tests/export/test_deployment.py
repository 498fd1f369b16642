"""A model goes to C++: AOTInductor's packages and TorchScript, with no Python in the process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fusewheel
import fusewheel_cpu
import pytest
import tiny_decoder
import torch
import torch._inductor.config as config
import torch.nn.functional as F
from filelock import FileLock
from nightly import NIGHTLY
from once import made_once
from oracle import assert_program_as_good_as_eager
from torch import Tensor
from torch._dynamo.utils import counters
from torch.export import Dim
from without_front import run_without_front

# Raised inside torch when it copies the description of a program.
pytestmark = [pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"), pytest.mark.long]

SOURCE = Path(__file__).parents[2] / "packages" / "examples" / "cpp"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny decoder, exported with fused operators and compiled."""
    sizes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=32)}
    example = (tiny_decoder.tokens(),)
    program = fusewheel.export(tiny_decoder.decoder(), example, dynamic_shapes=(sizes,))
    assert fusewheel.explain(program).counts() == tiny_decoder.COUNTS

    def compile_(folder: Path) -> None:
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))

    return made_once(tmp_path_factory, "package", compile_) / "model.pt2"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that CMake builds the C++ programs of the documentation in."""
    # torch is beside the installed package; beside one that was only unpacked it is not.
    prefix = f"{fusewheel_cpu.cmake_prefix_path};{Path(torch.__file__).parent}"
    options = ("-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")

    def configure(folder: Path) -> None:
        subprocess.run(["cmake", "-S", SOURCE, "-B", folder, *options], check=True, timeout=120)

    return made_once(tmp_path_factory, "program", configure)


def built(folder: Path, program: str) -> Path:
    with FileLock(f"{folder}.building"):
        subprocess.run(["cmake", "--build", folder, "--target", program], check=True, timeout=600)
    return folder / program


@pytest.fixture(scope="module")
def run_model(build: Path) -> Path:
    """The program that runs a model."""
    return built(build, "run_model")


def logits_of(run_model: Path, model: Path, tokens: Tensor) -> Tensor:
    """What the program prints: the logits of the last token."""
    command = [run_model, model, *map(str, tokens.flatten().tolist())]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    return torch.tensor([float(line) for line in done.stdout.split()])


def test_package_in_python(package: Path) -> None:
    """Without the front, and with sizes it was not compiled for."""
    run_without_front(
        f"""
model = torch._inductor.aoti_load_package({str(package)!r})
for batch, length in ((2, 7), (1, 2), (8, 32)):
    x = torch.randint(48, (batch, length), generator=torch.Generator().manual_seed(1))
    torch.save(model(x), {str(package)!r} + f".{{batch}}x{{length}}")
"""
    )
    model, exact = tiny_decoder.decoder(), tiny_decoder.decoder().double()
    for batch, length in ((2, 7), (1, 2), (8, 32)):
        x = tiny_decoder.tokens(batch, length)
        got = torch.load(f"{package}.{batch}x{length}")
        with torch.no_grad():
            assert_program_as_good_as_eager(got, model(x), exact(x), what=f"{batch} x {length}")


def test_package_in_cpp(package: Path, run_model: Path) -> None:
    model, exact = tiny_decoder.decoder(), tiny_decoder.decoder().double()
    for length in (3, 17):
        x = tiny_decoder.tokens(1, length)
        with torch.no_grad():
            eager, wide = model(x)[0, -1], exact(x)[0, -1]
        assert_program_as_good_as_eager(logits_of(run_model, package, x), eager, wide)


class Scripted(torch.nn.Module):
    """Calls the operators itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = torch.nn.Embedding(48, 16)
        self.weight = torch.nn.Parameter(1 + torch.rand(16))
        self.layer = torch.nn.Linear(16, 48)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        h = fusewheel.rms_norm(x, [16], self.weight, 1e-6)
        return self.layer(fusewheel.silu_mul(h, x))


class Written(Scripted):
    """The same without them."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        h = F.rms_norm(x, (16,), self.weight, 1e-6)
        return self.layer(F.silu(h) * x)


def test_torchscript_in_cpp(tmp_path: Path, run_model: Path) -> None:
    path, x = tmp_path / "model.pt", tiny_decoder.tokens(1, 9)
    scripted = torch.jit.script(Scripted())
    assert "fusewheel::silu_mul" in str(scripted.inlined_graph)
    scripted.save(str(path))
    with torch.no_grad():
        eager, wide = Written()(x)[0, -1], Written().double()(x)[0, -1]
    assert_program_as_good_as_eager(logits_of(run_model, path, x), eager, wide)


def test_optimized_torchscript_in_cpp(tmp_path: Path, run_model: Path) -> None:
    """As the documentation has it, at the length of the example and at others."""
    path = tmp_path / "model.pt"
    model, exact = tiny_decoder.decoder(), tiny_decoder.decoder().double()
    with torch.no_grad():
        traced = torch.jit.trace(model, (tiny_decoder.tokens(1, 6),))
        fast = fusewheel.jit.optimize(traced, (tiny_decoder.tokens(1, 6),))
    assert "fusewheel::add_rms_norm" in str(fast.inlined_graph)
    torch.jit.save(fast, str(path))
    for length in (6, 13, 1):
        x = tiny_decoder.tokens(1, length)
        with torch.no_grad():
            eager, wide = model(x)[0, -1], exact(x)[0, -1]
        assert_program_as_good_as_eager(logits_of(run_model, path, x), eager, wide)


def test_errors_in_cpp(tmp_path: Path, run_model: Path) -> None:
    """They name what is wrong and do not crash."""
    cases = {
        "nothing.pt": [str(tmp_path / "nothing.pt"), "1"],
        "usage:": [],
    }
    for message, arguments in cases.items():
        done = subprocess.run([run_model, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode in (1, 2), done.stderr
        assert message in done.stderr and "frame #" not in done.stderr, done.stderr


@NIGHTLY
def test_requests_are_answered_in_cpp(package: Path, build: Path) -> None:
    """Lines of tokens; the likeliest follow, until the one that ends an answer."""
    model = tiny_decoder.decoder()

    def answer(tokens: list[int], count: int) -> list[int]:
        for _ in range(count):
            with torch.no_grad():
                tokens = [*tokens, int(model(torch.tensor([tokens]))[0, -1].argmax())]
        return tokens[-count:]

    requests = [[3, 1, 4, 1, 5], [9, 2, 6]]
    first, second = (answer(tokens, 6) for tokens in requests)
    end = next(token for token in second if token not in first)
    second = second[: second.index(end)]
    lines = "".join(" ".join(map(str, tokens)) + "\n" for tokens in requests)
    command = [built(build, "answer"), package, "6", str(end)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = [[int(token) for token in line.split()] for line in done.stdout.splitlines()]
    assert got == [first, second]


@NIGHTLY
def test_an_operator_is_called_in_cpp(build: Path) -> None:
    done = subprocess.run([built(build, "call_operator")], capture_output=True, text=True)
    schema, *values = done.stdout.splitlines()
    assert schema == str(torch.ops.fusewheel.silu_mul.default._schema)
    gate, up = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([3.0, 5.0, 7.0])
    expected = [f"{value:.6f}" for value in (F.silu(gate) * up).tolist()]
    assert values == expected and done.returncode == 0, done.stderr


@NIGHTLY
def test_stock_program_compiled_with_the_pass(tmp_path: Path) -> None:
    """`aoti_compile_and_package` of a program that torch exported."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(1 + torch.rand(16))

        def forward(self, x: Tensor) -> Tensor:
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
            q = h[None, None]
            k = q[:, :, None].expand(1, 1, 2, x.shape[0], 16).reshape(1, 2, x.shape[0], 16)
            # Pays where no gradient is needed: what is compiled ahead of time has none.
            y = F.scaled_dot_product_attention(q.expand(1, 2, x.shape[0], 16), k, k)
            return F.silu(h) * y.mean((0, 1))

    block, x = Block(), torch.randn(6, 16)
    program = torch.export.export(block, (x,), dynamic_shapes=({0: Dim("rows", min=2, max=64)},))
    path = str(tmp_path / "block.pt2")
    counters.clear()
    with fusewheel.inductor.enabled():
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    assert config.pre_grad_custom_pass is None
    assert counters["fusewheel"] == {"rms_norm": 1, "silu_mul": 1, "grouped_attention": 1}
    compiled = torch._inductor.aoti_load_package(path)
    for rows in (6, 33):
        x = torch.randn(rows, 16)
        with torch.no_grad():
            exact = block.double()(x.double())
            assert_program_as_good_as_eager(compiled(x), block.float()(x), exact)
