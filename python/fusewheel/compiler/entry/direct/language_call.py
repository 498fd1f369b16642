"""The arguments of a call of a language model: tokens, their positions and a cache."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.autograd import in_forward_mode
from fusewheel._torch.dispatcher import is_direct
from fusewheel.compiler.entry.direct.static_rows import forms, growing, padding
from fusewheel.compiler.entry.direct.unchanged import same
from fusewheel.compiler.match.switches import disabled
from fusewheel.engine.growing import append, can_append

# The argument that says which tokens are padding: those of the cache and the new ones.
MASK = "attention_mask"
# The argument that numbers the new tokens among all, in older versions of transformers.
NUMBERS = "cache_position"
# The argument that says of how many last tokens logits are wanted; 0: of all.
KEEP = "logits_to_keep"
# What a layer of a cache has read. A window's size is part of the kind of a call.
_READ = frozenset(
    ("keys", "values", "cumulative_length", "sliding_window", "_sliding_window_tensor")
)
_PLAIN = frozenset((int, bool, str, type(None)))


@dataclass(frozen=True)
class LanguageCall:
    """The arguments of a call.

    Attributes:
        kind: what its operations depend on.
        tensors: of tokens, by the name of the argument.
        name: of the argument that is the cache.
        cache: the cache.
        static: the static cache that it was made of; None if it was an argument itself.
        past: the tokens that it has read.
        count: the new tokens of each text.
        slides: whether layers of the cache keep a window only.
        keeps_all: whether the logits of so many tokens are wanted that these are all new ones.
    """

    kind: tuple[Any, ...]
    tensors: dict[str, Tensor]
    name: str
    cache: Any
    static: Any
    past: int
    count: int
    slides: bool
    keeps_all: bool


@dataclass
class _Arguments:
    """What the arguments of a call are, one by one.

    Attributes:
        kind: what operations depend on, so far.
        tensors: of tokens, by name.
        cache: the only cache.
        name: of the argument that is the cache.
        mask: which tokens are padding, in any form; None if none is.
        numbers: of the new tokens among all; None if the model is not told.
        count: the new tokens of each text.
        kept: of how many last tokens logits are wanted; 0: of all.
    """

    kind: list[Any]
    tensors: dict[str, Tensor]
    cache: Any = None
    name: str = ""
    mask: Any = None
    numbers: Tensor | None = None
    count: int = 0
    kept: int = 0


def read_call(arguments: Mapping[str, Any], config: Any = None) -> LanguageCall | None:
    """A call of a model, if it has no other arguments, records no gradient, and nobody watches.

    Args:
        arguments: of the call, by name.
        config: of the model. Default None: then no call with a static cache is read.
    """
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None or torch.is_grad_enabled() or in_forward_mode() or not is_direct():
        return None
    given = _read_arguments(arguments, caches)
    if given is None:
        return None
    static, cache, count = None, given.cache, given.count
    if is_exactly(cache, caches.StaticCache):
        static, cache = cache, growing(cache, count, config, caches)
    past = None if cache is None else _past(cache.layers, caches)
    if past is None:
        return None
    rows, shapes, slides = past
    kind, tensors, mask = given.kind, given.tensors, given.mask
    if static is not None and mask is not None and not _is_tokens(mask):
        mask = padding(mask, next(iter(tensors.values())).shape[0], rows, count)
        if mask is None:
            return None
        mask = None if mask.all() else mask  # `generate` says nothing of texts without padding
    if mask is not None:
        if not _is_tokens(mask) or mask.shape[1] != rows + count:
            return None
        tensors[MASK] = mask.contiguous()
        kind.append((MASK, mask.shape[0]))
    if given.numbers is not None:
        if not torch.equal(given.numbers, torch.arange(rows, rows + count)):
            return None
        tensors[NUMBERS] = given.numbers.contiguous()
        kind.append(NUMBERS)
    if static is not None and not rows:
        kind += forms(static)
    keeps_all = given.kept >= count
    # A size of 1 is a case of its own: it broadcasts.
    kind += [0 if keeps_all else given.kept, min(count, 2), given.name, min(rows, 2), shapes]
    return LanguageCall(
        tuple(kind), tensors, given.name, cache, static, rows, count, slides, keeps_all
    )


def _read_arguments(arguments: Mapping[str, Any], caches: Any) -> _Arguments | None:
    """The arguments of a call; None if there are others, or no tokens, or no cache."""
    found = _Arguments([torch.get_default_dtype(), disabled()], {})
    for name, value in arguments.items():
        of = type(value)
        if name == MASK and isinstance(value, (Tensor, dict)):
            found.mask = value
        elif name == NUMBERS and _are_numbers(value):
            found.numbers = value
        elif _is_tokens(value):
            rows, tokens = value.shape
            if found.count not in (0, tokens):
                return None
            found.count = tokens
            found.tensors[name] = value.contiguous()
            found.kind.append((name, rows))
        elif name == KEEP and of is int:
            found.kept = value
        elif of in _PLAIN:
            found.kind.append((name, of, value))
        elif of in (caches.DynamicCache, caches.StaticCache) and found.cache is None:
            found.cache, found.name = value, name
        else:
            return None
    usable = found.count and found.cache is not None and not found.cache.offloading
    return found if usable else None


def grown_strides(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of a cache that a program made, see `fusewheel.engine.growing`."""
    batch, heads, _, size = shape
    return heads * size, size, batch * heads * size, 1


def as_grown(rows: Tensor) -> Tensor:
    """Keys or values with these strides: themselves, or a copy with room for more rows."""
    if rows.stride() == grown_strides(rows.shape):
        return rows
    return append(rows.new_empty(0), rows)


def grown_rows(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The keys and values of each `DynamicCache` among the arguments of a call."""
    caches = sys.modules.get("transformers.cache_utils")
    for value in arguments:
        if caches is None or not is_exactly(value, caches.DynamicCache):
            continue
        for layer in value.layers:
            if is_exactly(layer, caches.DynamicLayer) and layer.is_initialized:
                yield layer.keys
                yield layer.values


def _is_tokens(value: Any) -> bool:
    return _are_numbers(value, 2)


def _are_numbers(value: Any, dims: int = 1) -> bool:
    whole = type(value) is Tensor and value.dtype is torch.int64 and value.dim() == dims
    return whole and value.device.type == "cpu" and value.numel() > 0


def is_exactly(value: object, kind: type) -> bool:
    """Whether a value is of this class and not of one that inherits from it."""
    return type(value) is kind


def sliding_kind(caches: Any) -> type:
    """The class of the layers of a `DynamicCache` that keep a window only, in transformers."""
    kind: type = getattr(caches, "DynamicSlidingWindowLayer", caches.DynamicLayer)
    return kind


def is_beyond(layer: Any, past: int) -> bool:
    """Whether a layer's window is full: it keeps as many rows after the next token as before."""
    return layer.is_sliding and past >= layer.sliding_window


def _past(layers: list[Any], caches: Any) -> tuple[int, tuple[Any, ...], bool] | None:
    """The tokens that a cache has read, its form, and whether it slides.

    Returns:
        None unless the cache is empty or grew in a program.
    """
    full, sliding = caches.DynamicLayer, sliding_kind(caches)
    windows: list[int] = []
    recording = set[bool]()  # whether layers with a window keep everything until `crop`
    forms: dict[int, Any] = {}  # by window
    read = set[int]()
    for layer in layers:
        window = 0
        if not is_exactly(layer, full):
            if not is_exactly(layer, sliding):
                return None
            window = layer.sliding_window
            recording.add(getattr(layer, "record_past", False))
            read.add(layer.cumulative_length)
        own = None
        if layer.is_initialized:
            keys, values = layer.keys, layer.values
            if type(keys) is not Tensor or type(values) is not Tensor:
                return None
            own = (*_layout(keys), *_layout(values))
        if forms.setdefault(window, own) != own:
            return None
        windows.append(window)
    slides = bool(read)
    if 0 in forms:
        whole = forms[0]
        read.add(0 if whole is None else whole[0][2] if len(whole[0]) == 4 else -1)
    if len(read) != 1 or len(recording) > 1:
        return None
    past = read.pop()
    found = [_form(form, window, past) for window, form in forms.items()]
    return None if None in found else (past, (tuple(windows), *recording, *found), slides)


def _form(form: Any, window: int, past: int) -> tuple[Any, ...] | None:
    """What the layers with one window are like, if they have read so many tokens in a program."""
    if form is None:
        return None if past else ()
    shape, strides, dtype, other, other_strides, other_dtype = form
    rows = min(past, window - 1) if window else past
    if len(shape) != 4 or not rows or shape[2] != rows or shape[:3] != other[:3]:
        return None
    is_grown = strides == grown_strides(shape) and other_strides == grown_strides(other)
    if not is_grown and not can_append():
        return None
    return 0 < window <= past, shape[:2], shape[3], other[3], dtype, other_dtype


def _layout(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype


class _OnCpu:
    """Stands for a tensor that a layer of a cache moves to where its keys are."""

    def to(self, _: torch.device) -> _OnCpu:
        return self


def copy_of(cache: Any, read: Any) -> Any:
    """A cache that may be given fake tensors, which has read so many tokens."""
    made = copy.copy(cache)
    made.layers = list(map(copy.copy, cache.layers))
    for layer in filter(attrgetter("is_sliding"), made.layers):
        layer.cumulative_length = read
        layer._sliding_window_tensor = _OnCpu()
    return made


def noted(layer: Any) -> dict[str, Any]:
    """What a layer of a cache notes beside its keys and values, and what it has read."""
    return {name: value for name, value in vars(layer).items() if name not in _READ}


def has_changed(cache: Any, old: Any, read: Any) -> bool:
    """Whether a call did more to a cache than to add rows, and to note of what kind they are.

    Args:
        cache: what `copy_of` made of the cache, after the call.
        old: the cache as it was.
        read: how many tokens it has read now.
    """
    layers, olds = (list(map(noted, one.layers)) for one in (cache, old))
    if len(layers) != len(olds) or not same({**vars(cache), "layers": old.layers}, vars(old)):
        return True
    slides = filter(attrgetter("is_sliding"), cache.layers)
    if any(layer.cumulative_length != read for layer in slides):
        return True
    if any(layer.is_initialized for layer in old.layers):
        return not all(map(same, layers, olds))
    kinds = (bool, torch.dtype, torch.device, type(None))
    return not all(isinstance(value, kinds) for own in layers for value in own.values())
