"""Norms that are written out or called."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiler.near_misses.cases import HALF, ROW, X, Y, case, make


def rms(x: Any, w: Any, eps: Any = 1e-6, dim: Any = -1, keep: bool = True) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=keep) + eps) * w


def normal(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def centred(x: Any) -> Any:
    return x - x.mean(-1, keepdim=True)


def layer(x: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
    return centred(x) * torch.rsqrt(centred(x).pow(2).mean(-1, keepdim=True) + eps) * w + b


case("rms", lambda x, w: rms(x, w), X, ROW)
case("rms_of_function", lambda x, w: F.rms_norm(x, (16,), w, 1e-5), X, ROW)
case("rms_of_function_no_eps", lambda x, w: F.rms_norm(x, (16,), w), X, ROW)
case("rms_of_function_no_weight", lambda x: F.rms_norm(x, (16,), None, 1e-5), X)
case("rms_of_two_dims", lambda x, w: F.rms_norm(x, (3, 16), w, 1e-5), X, Y)
case("rms_power", lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6) ** -0.5 * w, X, ROW)
case("rms_other_power", lambda x, w: x * (x.pow(2).mean(-1, True) + 1e-6) ** -0.25 * w, X, ROW)
case("rms_no_eps", lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * w, X, ROW)
case("rms_eps_tensor", lambda x, w, e: rms(x, w, e), X, ROW, make(1).abs())
case("rms_rows", lambda x, w: rms(x, w, dim=0), X, ROW)
case("rms_squeezed", lambda x, w: rms(x, w, keep=False), make(16, 16), ROW)
case("rms_both_dims", lambda x, w: rms(x, w, dim=(0, 1)), X, ROW)
case("rms_of_mean", lambda x, w: x * torch.rsqrt(x.mean(-1, keepdim=True).abs() + 1.0) * w, X, ROW)
case("rms_cubed", lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, True) + 1e-6) * w, X, ROW)
case(
    "rms_of_another", lambda x, y, w: y * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * w, X, Y, ROW
)
case(
    "rms_root_used",
    lambda x, w: (lambda r: (x * r * w, r))(torch.rsqrt(x.pow(2).mean(-1, True) + 1)),
    X,
    ROW,
)
case("rms_divided", lambda x, w: x / torch.sqrt(x.pow(2).mean(-1, True) + 1e-6) * w, X, ROW)
case(
    "rms_divided_used",
    lambda x, w: (lambda r: (x / r * w, r))(torch.sqrt(x.pow(2).mean(-1, True) + 1)),
    X,
    ROW,
)
case("rms_over", lambda x, w: torch.sqrt(x.pow(2).mean(-1, True) + 1e-6) / x * w, X, ROW)
case("rms_no_weight", lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6), X)
case("rms_weight_of_rows", lambda x, w: rms(x, w), X, make(3, 1))
case("rms_weight_of_size_one", lambda x, w: rms(x, w), X, make(1))
case("rms_weight_float64", lambda x, w: rms(x, w), X, ROW.double())
case("rms_weight_half", lambda x, w: rms(x, w), X, ROW.bfloat16())
case("rms_float64", lambda x, w: rms(x, w), X.double(), ROW.double())
case("rms_half", lambda x, w: w * normal(x.float()).to(torch.bfloat16), HALF, ROW.bfloat16())
case("rms_half_statistics", lambda x, w: rms(x, w), HALF, ROW.bfloat16())
case("rms_cast_twice", lambda x, w: normal(x).bfloat16().half() * w, X, ROW.half())
case(
    "rms_cast_idle",
    lambda x, w: w * normal(x.float()).float().bfloat16(),
    HALF,
    ROW.bfloat16(),
)
case("rms_double_to_float", lambda x, w: normal(x).float() * w, X.double(), ROW)
case("rms_double_rounded", lambda x, w: rms(x, w).float(), X.double(), ROW.double())
case(
    "rms_double_product",
    lambda x, w: x.double() * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * w,
    X,
    ROW.double(),
)
case("rms_used_twice", lambda x, w: (lambda y: (y.bfloat16(), y))(rms(x, w)), X, ROW)
case("rms_of_function_half", lambda x, w: F.rms_norm(x, (16,), w), HALF, ROW.bfloat16())
case("rms_plus_one", lambda x, w: normal(x) * (1 + w), X, ROW)
case("rms_plus_two", lambda x, w: normal(x) * (2 + w), X, ROW)
case("add_rms", lambda x, y, w: (lambda h: (h, rms(h, w)))(x + y), X, Y, ROW)
case("add_number_rms", lambda x, w: (lambda h: (h, rms(h, w)))(x + 1), X, ROW)
case("add_row_rms", lambda x, y, w: (lambda h: (h, rms(h, w)))(x + y), X, ROW, ROW)
case("add_half_rms", lambda x, y, w: (lambda h: (h, rms(h, w)))(x + y), X, HALF, ROW)
case("layer", layer, X, ROW, ROW)
case("layer_of_function", lambda x, w, b: F.layer_norm(x, (16,), w, b), X, ROW, ROW)
case("layer_no_parameters", lambda x: F.layer_norm(x, (16,)), X)
case("layer_of_two_dims", lambda x: F.layer_norm(x, (3, 16)), X)
case(
    "layer_of_var",
    lambda x, w, b: centred(x) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + b,
    X,
    ROW,
    ROW,
)
case(
    "layer_unbiased",
    lambda x, w, b: centred(x) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * w + b,
    X,
    ROW,
    ROW,
)
case(
    "layer_var_of_rows",
    lambda x: centred(x) * torch.rsqrt(x.var(0, unbiased=False, keepdim=True) + 1e-5),
    X,
)
case(
    "layer_not_centred",
    lambda x: x * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5),
    X,
)
case(
    "layer_of_another",
    lambda x, y: centred(y) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5),
    X,
    Y,
)
case(
    "layer_mean_of_rows",
    lambda x: (
        (x - x.mean(0, keepdim=True)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
    ),
    X,
)
case(
    "layer_mean_of_another",
    lambda x, y: (
        (x - y.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
    ),
    X,
    Y,
)
case(
    "layer_bias_first",
    lambda x, w, b: (
        (centred(x) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) + b) * w
    ),
    X,
    ROW,
    ROW,
)
case(
    "layer_double_variance",
    lambda x: (
        centred(x) * torch.rsqrt(x.double().var(-1, unbiased=False, keepdim=True) + 1e-5).float()
    ),
    X,
)
case(
    "layer_double_variance_and_product",
    lambda x: centred(x) * torch.rsqrt(x.double().var(-1, unbiased=False, keepdim=True) + 1e-5),
    X,
)
case("layer_bias_of_rows", lambda x, w, b: layer(x, w, 0) + b, X, ROW, make(3, 1))
case("layer_two_weights", lambda x, w: layer(x, w, 0) * w, X, ROW)
case(
    "layer_half", lambda x, w, b: F.layer_norm(x, (16,), w, b), HALF, ROW.bfloat16(), ROW.bfloat16()
)
case("layer_mixed", lambda x, w, b: F.layer_norm(x.float(), (16,), w, b), HALF, ROW, ROW)
case("layer_half_statistics", layer, HALF, ROW.bfloat16(), ROW.bfloat16())
case("layer_integer_weight", lambda x, w: layer(x, w, 0), X, torch.arange(16))
case(
    "add_layer",
    lambda x, y, w, b: (lambda h: (h, F.layer_norm(h, (16,), w, b)))(x + y),
    X,
    Y,
    ROW,
    ROW,
)
case(
    "add_row_layer",
    lambda x, y, w, b: (lambda h: (h, F.layer_norm(h, (16,), w, b)))(x + y),
    X,
    ROW,
    ROW,
    ROW,
)
case(
    "add_half_layer",
    lambda x, y, w, b: (lambda h: (h, F.layer_norm(h, (16,), w, b)))(x + y),
    X,
    HALF,
    ROW,
    ROW,
)
