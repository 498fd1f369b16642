"""Equal layers of a language model, of which one is traced and its operations are repeated.

Tracing takes most of the time of compiling. Dynamo can repeat what it has traced of a function of
tensors, and so can `RepeatedLayers`. A layer of transformers is none, because it writes to its
cache. So while a frozen model is compiled, its layers are given keys and values and return them,
and the cache is written outside.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.dynamo import configured, repeated, repeats_calls
from fusewheel.compiler.entry.direct.alike_layers import is_alike
from fusewheel.compiler.entry.direct.language_call import is_exactly, sliding_kind

# Layers that use their cache for nothing but one `update`, and that are equal but for weights.
_KNOWN = frozenset(
    f"{name}DecoderLayer"
    for name in (
        *("Gemma", "Gemma2", "Gemma3", "Granite", "Llama", "Ministral", "Mistral", "Olmo", "Olmo2"),
        *("Olmo3", "Phi3", "Qwen2", "Qwen3", "SmolLM3", "Starcoder2"),
    )
)
# Layers of experts are only captured without Dynamo.
_CAPTURED = _KNOWN | {
    f"{name}DecoderLayer"
    for name in ("Glm4Moe", "GptOss", "Mixtral", "Olmoe", "Qwen2Moe", "Qwen3Moe")
}
_ARGUMENTS = frozenset(
    {"attention_mask", "position_ids", "position_embeddings", "use_cache", "cache"}
)

Forward = Callable[..., Tensor]


class EqualLayers:
    """The equal layers of one model; there may be none.

    Attributes:
        mixed_up: whether PyTorch took the weights of one layer for those of another.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.mixed_up = False
        self._tracing = False
        found = forwards(model, lambda: repeated(computed)) if repeats_calls() else []
        # A frozen model has no guards by which PyTorch could tell layers apart.
        alike = all(_may_repeat(found[0][0], layer) for layer, _ in found)
        self._forwards = found if alike else []

    @contextlib.contextmanager
    def traced_once(self) -> Iterator[None]:
        """A block in which a model is compiled."""
        if not self._forwards or self.mixed_up or torch.is_autocast_enabled("cpu"):
            # The keys of an empty cache have the dtype of what comes in.
            yield
            return
        self._tracing = True
        # A number that an earlier model had another of would be an input, of which torch gives the
        # repeated layers what is no tensor. The numbers of a frozen model stay as they are.
        settings = configured(inline_invoke_subgraph=True, specialize_float=True)
        try:
            with replaced(self._forwards), settings:
                yield
        finally:
            self._tracing = False

    def check(self, inputs: int) -> None:
        """Refuse a graph that has fewer inputs than all layers have parameters.

        Raises:
            RuntimeError: if so; then `mixed_up` is set, and nothing is repeated any more.
        """
        count = sum(1 for layer, _ in self._forwards for _ in layer.parameters())
        if self._tracing and inputs < count:
            self.mixed_up = True
            raise RuntimeError(f"the graph has {inputs} inputs, the layers {count} parameters")


def forwards(
    model: torch.nn.Module, once: Callable[[], Callable[..., Any]], *, captured: bool = False
) -> list[tuple[torch.nn.Module, Forward]]:
    """The layers of a model that may be equal, each with a `forward` that calls what `once` makes.

    Args:
        model: the model.
        once: makes, for each list of layers, a function like `computed`.
        captured: whether the model is captured without Dynamo. Then layers of experts may be equal
            too, and layers whose cache keeps a window only.
    """
    found: list[tuple[torch.nn.Module, Forward]] = []
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None:
        return found
    full = caches.DynamicLayer
    kinds = caches.DynamicCache, full, sliding_kind(caches) if captured else full
    names = _CAPTURED if captured else _KNOWN
    for layers in model.modules():
        if not isinstance(layers, torch.nn.ModuleList) or len(layers) < 2:
            continue
        if all(_is_known(layer, names) for layer in layers):
            forward = _forward(once(), kinds)
            # Methods: Dynamo must know where a layer comes from, or it repeats the first one with
            # its weights.
            found += [(layer, MethodType(forward, layer)) for layer in layers]
    return found


@contextlib.contextmanager
def replaced(layers: Sequence[tuple[torch.nn.Module, Forward]]) -> Iterator[None]:
    """A block in which these layers run these functions in place of their own `forward`."""
    # Who has replaced a layer's forward wants it called.
    own = [(layer, forward) for layer, forward in layers if "forward" not in vars(layer)]
    for layer, forward in own:
        vars(layer)["forward"] = forward
    try:
        yield
    finally:
        for layer, forward in own:
            if vars(layer).get("forward") is forward:
                del vars(layer)["forward"]


def _may_repeat(first: torch.nn.Module, layer: torch.nn.Module) -> bool:
    own = any("forward" in vars(module) for module in layer.modules())
    return not own and is_alike(first, layer)


def _is_known(layer: torch.nn.Module, names: Collection[str]) -> bool:
    kind = type(layer)
    return kind.__name__ in names and kind.__module__.startswith("transformers.")


class _Rows:
    """Stands for a cache: the keys and values of one layer."""

    def __init__(self, keys: Tensor, values: Tensor, window: int) -> None:
        self.keys, self.values, self._window = keys, values, window

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        found = torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2)
        self.keys, self.values = map(self._kept, found)
        return found

    def _kept(self, rows: Tensor) -> Tensor:
        most = self._window - 1
        return rows if most < 0 or rows.shape[2] <= most else rows[:, :, -most:, :]


def computed(
    layer: torch.nn.Module,
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    positions: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    window: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """What a layer computes, and the keys and values that it keeps: of a window, if it has one."""
    rows = _Rows(keys, values, window)
    forward: Any = type(layer).forward
    found = forward(
        layer,
        hidden,
        attention_mask=mask,
        position_ids=positions,
        position_embeddings=(cos, sin),
        cache=rows,
        use_cache=True,
    )
    return found, rows.keys, rows.values


def _is_off(name: str, value: Any) -> bool:
    return name == "output_router_logits" and not value


def _is_one_of(rows: object, kind: type, other: type) -> bool:
    return is_exactly(rows, kind) or is_exactly(rows, other)


def _forward(once: Callable[..., Any], kinds: tuple[type, type, type]) -> Callable[..., Tensor]:
    """The `forward` of layers while they are compiled.

    Args:
        once: see `forwards`.
        kinds: the class of the caches that it knows, and two of their layers'.
    """
    cache_kind, rows_kind, other_kind = kinds

    def forward(layer: Any, hidden: Tensor, **given: Any) -> Tensor:
        cache: Any = given.get("cache")
        index = layer.self_attn.layer_idx
        if (
            not is_exactly(cache, cache_kind)
            or cache.offloading
            or len(cache.layers) <= index
            or not _is_one_of(cache.layers[index], rows_kind, other_kind)
            or given.get("position_embeddings") is None
            or not all(name in _ARGUMENTS or _is_off(name, given[name]) for name in given)
        ):
            whole: Tensor = type(layer).forward(layer, hidden, **given)
            return whole
        rows = cache.layers[index]
        if not rows.is_initialized:
            rows.lazy_initialization(hidden, hidden)
        cos, sin = given["position_embeddings"]
        mask, positions = given.get("attention_mask"), given.get("position_ids")
        found: Tensor
        # Who records keeps everything until `crop` is called.
        keeps_all = not rows.is_sliding or getattr(rows, "record_past", False)
        window = () if keeps_all else (rows.sliding_window,)
        found, rows.keys, rows.values = once(
            layer, hidden, rows.keys, rows.values, mask, positions, cos, sin, *window
        )
        if rows.is_sliding:
            rows.cumulative_length += hidden.shape[1]
        return found

    return forward
