"""Functions with PyTorch's arguments take what PyTorch's take, by PyTorch's own samples."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import fusewheel
import pytest
import torch
from neighbours import assert_call_as_good_as_eager
from torch import Tensor
from torch.nn import functional

NAMES = (
    "rms_norm",
    "layer_norm",
    "cross_entropy",
    "gelu",
    "linear",
    "scaled_dot_product_attention",
)
OTHERS = {
    "rms_norm": (torch.complex64, torch.complex128),
    "linear": (torch.int64, torch.uint8, torch.complex64),
}


def samples(name: str, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Each of PyTorch's samples: all positional arguments, and the others."""
    # Takes four seconds, which other tests of this process need not wait for.
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (op for op in op_db if op.name == f"nn.functional.{name}")
    assert dtype in info.dtypes
    slopes = dtype.is_floating_point or dtype.is_complex
    for sample in info.sample_inputs("cpu", dtype, requires_grad=slopes):
        yield (sample.input, *sample.args), sample.kwargs


def needs(args: tuple[Any, ...]) -> tuple[bool, ...]:
    """Of which arguments PyTorch asks for the gradient."""
    return tuple(isinstance(a, Tensor) and a.requires_grad for a in args)


def step(
    function: Callable[..., Tensor],
    args: tuple[Any, ...],
    wanted: tuple[bool, ...],
    names: tuple[str, ...],
) -> tuple[Tensor, ...]:
    """The result and the gradients that are wanted; the last arguments go by name."""
    given = [
        a.detach().requires_grad_(need) if isinstance(a, Tensor) else a
        for a, need in zip(args, wanted, strict=True)
    ]
    split = len(given) - len(names)
    y = function(*given[:split], **dict(zip(names, given[split:], strict=True)))
    leaves = [a for a, need in zip(given, wanted, strict=True) if need]
    if not leaves:
        return (y,)
    slope = torch.linspace(0.1, 1, y.numel()).to(y.dtype).view(y.shape)
    return y.detach(), *torch.autograd.grad(y, leaves, slope)


def compared(
    wanted: tuple[bool, ...], names: tuple[str, ...], function: Any, args: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    return step(function, args, wanted, names)


@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_own_samples(name: str, dtype: torch.dtype) -> None:
    own, eager = getattr(fusewheel, name), getattr(functional, name)
    count = 0
    for args, kwargs in samples(name, dtype):
        count += 1
        given, names = (*args, *kwargs.values()), tuple(kwargs)
        wanted = needs(given)
        if kwargs.get("dropout_p"):
            # Which keys are dropped is random: `test_dropout` looks at them.
            shapes = [step(f, given, wanted, names)[0].shape for f in (own, eager)]
            assert shapes[0] == shapes[1]
            continue
        if name == "scaled_dot_product_attention" and dtype != torch.float64:
            continue  # its gradients have a contract: attention/test_attention_samples.py
        compute = functools.partial(compared, wanted, names)
        what = f"{name}{[getattr(a, 'shape', a) for a in given]} {names}, result"
        assert_call_as_good_as_eager(compute, own, eager, given, what)
    assert count >= 6


@pytest.mark.parametrize(("name", "other"), [(n, d) for n, ds in OTHERS.items() for d in ds])
def test_dtypes_that_pytorchs_function_computes(name: str, other: torch.dtype) -> None:
    for args, kwargs in samples(name, other):
        names, given = tuple(kwargs), (*args, *kwargs.values())
        functions = getattr(fusewheel, name), getattr(functional, name)
        for a, b in zip(*(step(f, given, needs(given), names) for f in functions), strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_pytorch(name: str) -> None:
    own = inspect.signature(getattr(fusewheel, name)).parameters
    if name in ("gelu", "linear", "scaled_dot_product_attention"):
        theirs = (getattr(functional, name).__doc__ or "").split("(", 1)[1].split(")")[0]
        wanted = [part.split("=")[0].strip() for part in theirs.split(",")]
    else:
        wanted = list(inspect.signature(getattr(functional, name)).parameters)
    positional = [p.name for p in own.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [name for name in wanted if name != "*"]


def test_norms_of_several_dimensions_and_a_number() -> None:
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(3, 4), torch.randn(3, 4)
    for shape, sizes in (((3, 4), (3, 4)), (4, (4,)), (torch.Size([4]), (4,))):
        w, b = (t if len(sizes) == 2 else t[0] for t in (weight, bias))
        for eps in (None, 1e-3):
            got, want = fusewheel.rms_norm(x, shape, w, eps), functional.rms_norm(x, sizes, w, eps)
            torch.testing.assert_close(got, want)
        got, want = fusewheel.layer_norm(x, shape, w, b), functional.layer_norm(x, sizes, w, b)
        torch.testing.assert_close(got, want)


def test_no_weight_multiplies_by_nothing_in_every_cast() -> None:
    x = torch.randn(3, 8)
    want = functional.rms_norm(x, (8,))
    for cast in ("torch", "llama", "gemma"):
        torch.testing.assert_close(fusewheel.rms_norm(x, 8, cast=cast), want)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_weight_of_another_dtype_is_pytorchs_matter(name: str) -> None:
    x, weight = torch.randn(3, 8).bfloat16(), torch.randn(8)
    own, eager = getattr(fusewheel, name), getattr(functional, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, about this
        assert torch.equal(own(x, 8, weight), eager(x, (8,), weight))


def test_the_difference_to_1_is_that_of_the_dtype_of_computation(dtype: torch.dtype) -> None:
    x = torch.full((4, 8), 1e-4 if dtype != torch.float64 else 1e-9, dtype=dtype)
    torch.testing.assert_close(fusewheel.rms_norm(x, 8), functional.rms_norm(x, (8,)))


FORMER: dict[str, Callable[[Tensor, Tensor], tuple[Callable[[], Tensor], Callable[[], Tensor]]]] = {
    "rms_norm": lambda x, w: (
        lambda: fusewheel.rms_norm(x, w),
        lambda: fusewheel.rms_norm(x, 8, w, 1e-6, cast="llama"),
    ),
    "rms_norm, positional": lambda x, w: (
        lambda: fusewheel.rms_norm(x, w, 0.1, "gemma"),
        lambda: fusewheel.rms_norm(x, 8, w, 0.1, cast="gemma"),
    ),
    "rms_norm, named": lambda x, w: (
        lambda: fusewheel.rms_norm(x=x, weight=w, cast="torch"),
        lambda: fusewheel.rms_norm(x, 8, w, 1e-6),
    ),
    "layer_norm": lambda x, w: (
        lambda: fusewheel.layer_norm(x, w, w, 0.1),
        lambda: fusewheel.layer_norm(x, 8, w, w, 0.1),
    ),
    "layer_norm, alone": lambda x, w: (
        lambda: fusewheel.layer_norm(x),
        lambda: fusewheel.layer_norm(x, 8),
    ),
    "layer_norm, no weight": lambda x, w: (
        lambda: fusewheel.layer_norm(x, None, w),
        lambda: fusewheel.layer_norm(x, (8,), None, w),
    ),
    "gelu": lambda x, w: (
        lambda: fusewheel.gelu(x=x, approximate="tanh"),
        lambda: fusewheel.gelu(x, "tanh"),
    ),
    "linear": lambda x, w: (
        lambda: fusewheel.linear(x=x, weight=x),
        lambda: fusewheel.linear(x, x),
    ),
    "cross_entropy": lambda x, w: (
        lambda: fusewheel.cross_entropy(x, CLASSES, w, -100, "sum", 0.1, 0.01, 2.0),
        lambda: fusewheel.cross_entropy(
            x, CLASSES, w, reduction="sum", label_smoothing=0.1, z_loss=0.01, softcap=2.0
        ),
    ),
    "cross_entropy, named": lambda x, w: (
        lambda: fusewheel.cross_entropy(logits=x, target=CLASSES),
        lambda: fusewheel.cross_entropy(x, CLASSES),
    ),
}
CLASSES = torch.tensor([0, 7, 3])


@pytest.mark.parametrize("case", FORMER)
def test_former_arguments_work_and_warn(case: str) -> None:
    former, now = FORMER[case](torch.randn(3, 8), torch.rand(8))
    with pytest.warns(
        DeprecationWarning, match=r"fusewheel\.\w+ was called with its former arg"
    ) as found:
        got = former()
    assert found[0].filename == __file__, "the warning blames the caller"
    assert torch.equal(got, now())


@pytest.mark.parametrize("case", FORMER)
def test_former_arguments_compile_in_one_graph(case: str) -> None:
    former, now = FORMER[case](torch.randn(3, 8), torch.rand(8))
    for call in (former, now):
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(), now())


def test_options_that_pytorch_has_given_up() -> None:
    x = torch.randn(3, 8)
    for size_average in (None, True, False):
        for reduce in (None, True, False):
            if size_average is reduce is None:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = functional.cross_entropy(x, CLASSES, None, size_average, -100, reduce)
            got = fusewheel.cross_entropy(x, CLASSES, None, size_average, -100, reduce)
            torch.testing.assert_close(got, want)


def test_classes_of_eight_bits() -> None:
    x = torch.randn(3, 8)
    got = fusewheel.cross_entropy(x, CLASSES.to(torch.uint8))
    assert torch.equal(got, fusewheel.cross_entropy(x, CLASSES))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fusewheel.rms_norm(x.int(), 8), "rms_norm: input must be float32.* got int32"),
        (lambda x: fusewheel.rms_norm(x, (4, 8)), r"rms_norm: input .*\[4, 8\].*got \[3, 8\]"),
        (lambda x: fusewheel.rms_norm(x, ()), "rms_norm: normalized_shape must .* got \\[\\]"),
        (lambda x: fusewheel.rms_norm(x, 8, x), r"rms_norm: weight must have shape \[8\].*\[3, 8"),
        (lambda x: fusewheel.layer_norm(x, 8, x[0], x), r"layer_norm: bias must have shape \[8\]"),
        (lambda x: fusewheel.layer_norm(x.int(), 8), "layer_norm: input must be float32"),
        (lambda x: fusewheel.gelu(x.int()), "gelu: input must be float32"),
        (lambda x: fusewheel.linear(x, x[:, :7]), "linear: input must have 7 elements"),
        (lambda x: fusewheel.cross_entropy(x.int(), CLASSES), "cross_entropy: input must be fl"),
        (
            lambda x: fusewheel.scaled_dot_product_attention(x, x, x.to(torch.float64)),
            "scaled_dot_product_attention: value must have the dtype of query",
        ),
        (
            lambda x: fusewheel.scaled_dot_product_attention(x, x, x, x, is_causal=True),
            "scaled_dot_product_attention: attn_mask must be None",
        ),
        (
            lambda x: fusewheel.scaled_dot_product_attention(x, x[0], x),
            "scaled_dot_product_attention: key must have at least two dimensions",
        ),
        (
            lambda x: fusewheel.scaled_dot_product_attention(
                x.expand(2, 3, 8), x.expand(5, 3, 8), x
            ),
            "scaled_dot_product_attention: query, key and value must have dimensions that broadc",
        ),
    ],
)
def test_errors_name_the_arguments_of_the_function(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(torch.randn(3, 8))


SHAPES = {
    "fewer keys": ((2, 4, 5, 8), (2, 4, 3, 8), {"is_causal": True}),
    "more keys": ((2, 4, 3, 8), (2, 4, 5, 8), {"is_causal": True}),
    "as many keys": ((2, 4, 5, 8), (2, 4, 5, 8), {"is_causal": True}),
    "two dimensions": ((5, 8), (3, 8), {"scale": 0.3}),
    "five dimensions": ((2, 3, 4, 5, 8), (2, 3, 4, 3, 8), {}),
    "grouped": ((2, 4, 5, 8), (2, 2, 5, 8), {"enable_gqa": True, "is_causal": True}),
    "grouped, one": ((2, 4, 5, 8), (1, 1, 3, 8), {"enable_gqa": True}),
    "one head of keys": ((2, 4, 5, 8), (2, 1, 3, 8), {}),
    "grouped, three dimensions": ((4, 5, 8), (2, 3, 8), {"enable_gqa": True}),
}


def test_dropout() -> None:
    q = torch.randn(2, 3, 50, 8)
    values = torch.eye(50).expand(2, 3, 50, 50)  # the result is each key's share
    for options in ({}, {"is_causal": True}):
        whole = fusewheel.scaled_dot_product_attention(q, q, values, **options)
        torch.manual_seed(0)
        some = fusewheel.scaled_dot_product_attention(q, q, values, dropout_p=0.25, **options)
        kept = some != 0
        torch.testing.assert_close(some[kept], whole[kept] / 0.75)
        assert 0.7 < kept[whole != 0].float().mean() < 0.8
    with pytest.raises(ValueError, match="scaled_dot_product_attention: dropout_p must be betw"):
        fusewheel.scaled_dot_product_attention(q, q, q, dropout_p=1.5)


MASKS = ("none", "bool", "float", "a row for each head")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", SHAPES)
def test_shapes_of_attention(case: str, mask: str) -> None:
    of_query, of_key, options = SHAPES[case]
    if mask != "none" and "is_causal" in options:
        options = {k: v for k, v in options.items() if k != "is_causal"}
    lengths = of_query[-2], of_key[-2]
    given = {
        "none": None,
        "bool": torch.rand(lengths) > 0.3,
        "float": torch.randn(lengths, dtype=torch.float64),
        "a row for each head": torch.rand(*of_query[:-2], 1, of_key[-2]) > 0.3,
    }[mask]
    make = (of_query, of_key, (*of_key[:-1], 6))
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in make]
    if given is not None and given.is_floating_point():
        leaves.append(given.requires_grad_())
    found = []
    for function in (
        fusewheel.scaled_dot_product_attention,
        functional.scaled_dot_product_attention,
    ):
        y = function(*leaves[:3], attn_mask=given, **options)
        slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        found.append((y, *torch.autograd.grad(y, leaves, slope)))
    torch.testing.assert_close(*found)


def test_a_float32_mask_beside_half_precision() -> None:
    q, mask = torch.randn(1, 2, 3, 8).bfloat16(), torch.randn(3, 3)
    got = fusewheel.scaled_dot_product_attention(q, q, q, mask)
    assert torch.equal(got, fusewheel.scaled_dot_product_attention(q, q, q, mask.bfloat16()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_takes_what_is_only_by_name() -> None:
    def both(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        y = fusewheel.rms_norm(x, [2, 8], weight, cast="llama")
        z = fusewheel.layer_norm(y, [8], None, None, 1e-3)
        a = fusewheel.scaled_dot_product_attention(z, z, z, is_causal=True)
        return y, fusewheel.cross_entropy(a.flatten(0, 1), target, z_loss=0.1)

    given = torch.randn(2, 2, 8), torch.rand(2, 8), torch.tensor([1, 2, 3, 4])
    torch.testing.assert_close(torch.jit.script(both)(*given), both(*given))
