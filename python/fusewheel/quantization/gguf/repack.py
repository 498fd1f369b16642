"""Uses the blocks of a GGUF file in the linear layers of a model that was loaded from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel._core.progress import progress
from fusewheel.quantization.blocks import from_gguf
from fusewheel.quantization.formats import Int8Weight, dequantize_int4, dequantize_int8
from fusewheel.quantization.modules import LinearInt4, LinearInt8

# For these architectures the converter reorders the rows of attn_q and attn_k: rotary pairs are
# half a head apart in transformers and neighbours in the file.
_NEIGHBOURING_PAIRS = ("llama",)


@dataclass(frozen=True)
class Repacked:
    """The result of `repack_gguf`.

    Attributes:
        replaced: for each replaced layer, by its name, its type in the file (``"Q4_1"``).
        kept: for each linear layer that was not replaced, by its name, the reason.
    """

    replaced: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def repack_gguf(model: nn.Module, path: str | os.PathLike[str], dynamic: bool = False) -> Repacked:
    """Replace the linear layers of a model that was loaded from a GGUF file by layers that use the
    file's 4-bit and 8-bit blocks.

    ``AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)`` converts the blocks to floating
    numbers. This function converts them back to `LinearInt4` and `LinearInt8`, without loss: a
    layer is replaced only if its weight is equal to the blocks, bit for bit. So the model must have
    been loaded from this file, and its weights must be unchanged. An output layer that shares its
    weight with the embedding is replaced too; the embedding is not.

    Args:
        model: a transformers model; it is changed in place.
        path: the GGUF file. The package ``gguf`` translates the names of tensors.
        dynamic: whether the layers round their activations to int8; default False.

    Returns:
        The layers that were replaced, and those that were not, with the reasons.

    Raises:
        ModuleNotFoundError: the package ``gguf`` is not installed.
        ValueError: the architecture is unknown to ``gguf``, or no layer could be replaced.
    """
    file = _File(path)
    found = Repacked()
    for name, linear in progress(list(_linear_layers(model)), describe="use blocks of the file"):
        try:
            kind, layer = file.layer(name, linear, _is_tied(model, linear), dynamic)
        except ValueError as reason:
            found.kept[name] = str(reason)
        else:
            found.replaced[name] = kind
            model.set_submodule(name, layer)
    if not found.replaced:
        raise ValueError(f"{os.fspath(path)} has no layer of this model: {found.kept}")
    return found


class _File:
    """The tensors of a GGUF file, by their names in transformers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._architecture = self._field("general.architecture")
        known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
        if self._architecture not in known:
            raise ValueError(f"gguf does not know the architecture {self._architecture!r}")
        blocks = self._field(f"{self._architecture}.block_count")
        self._names = gguf.get_tensor_name_map(known[self._architecture], blocks)

    def layer(
        self, name: str, linear: nn.Linear, tied: bool, dynamic: bool
    ) -> tuple[str, nn.Module]:
        """The type of a layer's tensor in the file, and a layer that uses its blocks.

        Raises:
            ValueError: the reason why the layer cannot be replaced.
        """
        tensor = self._tensor(name, tied)
        kind = tensor.tensor_type.name
        rows, columns = linear.weight.shape
        if list(tensor.shape) != [columns, rows]:
            raise ValueError(
                f"{tensor.name} has shape {[int(size) for size in tensor.shape[::-1]]}"
            )
        # A copy, because the file is mapped read-only.
        blocks = torch.from_numpy(tensor.data.copy())
        order = self._row_order(tensor.name, rows)
        weight = from_gguf(blocks if order is None else blocks[order], kind, (rows, columns))
        layer: LinearInt4 | LinearInt8
        if isinstance(weight, Int8Weight):
            layer, exact = LinearInt8.from_weight(weight, linear.bias), dequantize_int8(*weight)
        else:
            layer, exact = LinearInt4.from_weight(weight, linear.bias), dequantize_int4(*weight)
        if not torch.equal(exact.to(linear.weight.dtype), linear.weight):
            raise ValueError(f"its weight is not that of {tensor.name}")
        layer.dynamic = dynamic
        return kind, layer.train(linear.training)

    def _tensor(self, name: str, tied: bool) -> Any:
        key = self._names.get_name(name)
        if key is None:
            raise ValueError("gguf has no name for it")
        tensor = self._tensors.get(f"{key}.weight")
        if tensor is None and tied:
            tensor = self._tensors.get("token_embd.weight")
        if tensor is None:
            raise ValueError(f"there is no {key}.weight in the file")
        return tensor

    def _row_order(self, key: str, rows: int) -> Tensor | None:
        """The row in the file for each row in transformers; None if the order is the same."""
        kind = key.split(".")[-2]
        if self._architecture not in _NEIGHBOURING_PAIRS or kind not in ("attn_q", "attn_k"):
            return None
        heads = self._field(f"{self._architecture}.attention.head_count")
        if kind == "attn_k":
            heads = self._field(f"{self._architecture}.attention.head_count_kv", heads)
        pairs = rows // heads // 2
        return torch.arange(rows).view(heads, pairs, 2).transpose(1, 2).flatten()

    def _field(self, name: str, default: Any = None) -> Any:
        found = self._fields.get(name)
        return default if found is None else found.contents()


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        # Not a subclass: it may compute something else.
        if type(module) is nn.Linear:
            yield name, module


def _is_tied(model: nn.Module, linear: nn.Linear) -> bool:
    """Whether a layer shares its weight with the embedding."""
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    return embedding is not None and linear.weight is embedding.weight
