"""Losses, and the last layer in front of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from compiler.near_misses.cases import case, make

LOGITS, CLASSES = make(6, 5), torch.tensor([0, 4, 2, 1, 3, 0])
THREE, PLACES = make(2, 4, 5), torch.tensor([[0, 4, 2, 1], [3, 0, 1, 2]])
SHARES = make(5).abs()
loss = F.cross_entropy
case("loss", lambda x, t: loss(x, t), LOGITS, CLASSES)
case("loss_sum", lambda x, t: loss(x, t, reduction="sum"), LOGITS, CLASSES)
case("loss_rows", lambda x, t: loss(x, t, reduction="none"), LOGITS, CLASSES)
case("loss_ignored", lambda x, t: loss(x, t, ignore_index=0), LOGITS, CLASSES)
case(
    "loss_all_ignored",
    lambda x, t: loss(x, t, ignore_index=3).nan_to_num(7.0),
    LOGITS,
    CLASSES * 0 + 3,
)
case("loss_smooth", lambda x, t: loss(x, t, label_smoothing=0.2), LOGITS, CLASSES)
case("loss_weights", lambda x, t, w: loss(x, t, w), LOGITS, CLASSES, SHARES)
case("loss_weights_ignored", lambda x, t, w: loss(x, t, w, ignore_index=0), LOGITS, CLASSES, SHARES)
case(
    "loss_weights_of_half",
    lambda x, t, w: loss(x.bfloat16().float(), t, w),
    LOGITS,
    CLASSES,
    SHARES,
)
case("loss_one_row", lambda x, t: loss(x, t), LOGITS[0], CLASSES[0])
case("loss_probabilities", lambda x, t: loss(x, t), LOGITS, LOGITS.softmax(-1))
case("loss_second_dim", lambda x, t: loss(x, t), THREE.mT.contiguous(), PLACES)
case("loss_permuted", lambda x, t: loss(x.permute(0, 2, 1), t), THREE, PLACES)
case(
    "loss_permuted_rows", lambda x, t: loss(x.permute(0, 2, 1), t, reduction="none"), THREE, PLACES
)
case(
    "loss_permuted_order",
    lambda x, t: loss(x.permute(1, 2, 0), t),
    make(5, 2, 3).permute(1, 2, 0).contiguous().permute(0, 1, 2).reshape(3, 2, 5),
    torch.tensor([[0, 1, 2], [2, 1, 0]]),
)
case("loss_flat", lambda x, t: loss(x.reshape(8, 5), t.reshape(8)), THREE, PLACES)
case("loss_regrouped", lambda x, t: loss(x.reshape(4, 10), t.reshape(8)[:4]), THREE, PLACES)
case("loss_shifted", lambda x, t: loss(x[:, :-1].reshape(6, 5), t[:, 1:].reshape(6)), THREE, PLACES)
case(
    "loss_stepped", lambda x, t: loss(x[:, ::2].reshape(4, 5), t[:, ::2].reshape(4)), THREE, PLACES
)
case(
    "loss_some_classes",
    lambda x, t: loss(x[..., :4].reshape(8, 4), t.reshape(8) % 4),
    THREE,
    PLACES,
)
case("loss_last", lambda x, t: loss(x[:, -1], t[:, 0]), THREE, PLACES)
case("loss_cast", lambda x, t: loss(x.float(), t), LOGITS.bfloat16(), CLASSES)
case("loss_cast_from_half", lambda x, t: loss(x.float(), t), LOGITS.half(), CLASSES)
case("loss_narrowed", lambda x, t: loss(x.bfloat16(), t), LOGITS, CLASSES)
case("loss_of_logarithms", lambda x, t: F.nll_loss(x.log_softmax(-1), t), LOGITS, CLASSES)
case("loss_of_other_logarithms", lambda x, t: F.nll_loss(x.log_softmax(0), t), LOGITS, CLASSES)
case("loss_of_no_logarithms", lambda x, t: F.nll_loss(x, t), LOGITS, CLASSES)
case("loss_capped", lambda x, t: loss(torch.tanh(x / 3) * 3, t), LOGITS, CLASSES)
case("loss_capped_turned", lambda x, t: loss(3.0 * torch.tanh(x / 3), t), LOGITS, CLASSES)
case("loss_capped_otherwise", lambda x, t: loss(torch.tanh(x / 3) * 2, t), LOGITS, CLASSES)
case("loss_capped_negative", lambda x, t: loss(torch.tanh(x / -3) * -3, t), LOGITS, CLASSES)
case(
    "loss_capped_used",
    lambda x, t: (lambda z: (loss(z, t), z))(torch.tanh(x / 3) * 3),
    LOGITS,
    CLASSES,
)
case(
    "loss_capped_twice",
    lambda x, t: loss(torch.tanh((torch.tanh(x / 3) * 3) / 2) * 2, t),
    LOGITS,
    CLASSES,
)
case(
    "loss_capped_cast",
    lambda x, t: loss(torch.tanh(x.float() / 3) * 3, t),
    LOGITS.bfloat16(),
    CLASSES,
)
case(
    "loss_capped_shifted",
    lambda x, t: loss((torch.tanh(x / 3) * 3)[:, :-1].reshape(6, 5), t[:, 1:].reshape(6)),
    THREE,
    PLACES,
)
HIDDEN, HEAD = make(6, 8), make(5, 8)
case("head", lambda x, w, t: loss(F.linear(x, w), t), HIDDEN, HEAD, CLASSES)
case("head_bias", lambda x, w, b, t: loss(F.linear(x, w, b), t), HIDDEN, HEAD, SHARES, CLASSES)
case("head_product", lambda x, w, t: loss(x @ w, t), HIDDEN, HEAD.t().contiguous(), CLASSES)
case("head_turned", lambda x, w, t: loss(x @ w.t(), t), HIDDEN, HEAD, CLASSES)
case("head_plus", lambda x, w, b, t: loss(x @ w.t() + b, t), HIDDEN, HEAD, SHARES, CLASSES)
case("head_plus_turned", lambda x, w, b, t: loss(b + x @ w.t(), t), HIDDEN, HEAD, SHARES, CLASSES)
case("head_plus_rows", lambda x, w, b, t: loss(x @ w.t() + b, t), HIDDEN, HEAD, LOGITS, CLASSES)
case("head_plus_number", lambda x, w, t: loss(x @ w.t() + 1, t), HIDDEN, HEAD, CLASSES)
case(
    "head_plus_double",
    lambda x, w, b, t: loss(x @ w.t() + b, t),
    HIDDEN,
    HEAD,
    SHARES.double(),
    CLASSES,
)
case(
    "head_returned",
    lambda x, w, t: (lambda z: (loss(z, t), z))(F.linear(x, w)),
    HIDDEN,
    HEAD,
    CLASSES,
)
case(
    "head_used",
    lambda x, w, t: (lambda z: loss(z, t) + z.sum())(F.linear(x, w)),
    HIDDEN,
    HEAD,
    CLASSES,
)
case("head_rows", lambda x, w, t: loss(F.linear(x, w), t, reduction="none"), HIDDEN, HEAD, CLASSES)
case(
    "head_rows_trained",
    lambda x, w, t: loss(F.linear(x, w), t, reduction="none"),
    HIDDEN,
    HEAD.clone().requires_grad_(),
    CLASSES,
)
case(
    "head_trained",
    lambda x, w, t: loss(F.linear(x, w), t),
    HIDDEN,
    HEAD.clone().requires_grad_(),
    CLASSES,
)
case("head_weights", lambda x, w, t, s: loss(F.linear(x, w), t, s), HIDDEN, HEAD, CLASSES, SHARES)
case(
    "head_weights_wide",
    lambda x, w, t, s: loss(F.linear(x, w).float(), t, s),
    HIDDEN.bfloat16(),
    HEAD.bfloat16(),
    CLASSES,
    SHARES,
)
case(
    "head_batched",
    lambda x, w, t: loss((x @ w).reshape(8, 5), t.reshape(8)),
    make(2, 4, 8),
    make(2, 8, 5),
    PLACES,
)
case(
    "head_shifted",
    lambda x, w, t: loss(F.linear(x, w)[:, :-1].reshape(6, 5), t[:, 1:].reshape(6)),
    make(2, 4, 8),
    HEAD,
    PLACES,
)
case(
    "head_ellipsis",
    lambda x, w, t: loss(F.linear(x, w)[..., 1:, :].reshape(6, 5), t[:, 1:].reshape(6)),
    make(2, 4, 8),
    HEAD,
    PLACES,
)
case(
    "head_chosen",
    lambda x, w, t, i: loss(F.linear(x, w)[i], t),
    HIDDEN,
    HEAD,
    CLASSES,
    CLASSES,
)
case(
    "head_capped",
    lambda x, w, t: loss(torch.tanh(F.linear(x, w) / 3) * 3, t),
    HIDDEN,
    HEAD,
    CLASSES,
)
