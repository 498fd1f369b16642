"""The tensors of a GGUF file by the names that they have in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.choices import BlockKind
from fusewheel.quantization.gguf.config import architecture_of
from fusewheel.quantization.gguf.file import GgufFile


class Tensors:
    """Gives parameters their tensors, in the order and of the values of transformers.

    Args:
        file: the file.
        config: the configuration that `read_config` made of it.

    Attributes:
        file: the file.
        unused: the names in the file of what no parameter has got.
    """

    def __init__(self, file: GgufFile, config: Any) -> None:
        import gguf

        self.file = file
        self.unused = set(file.tensors)
        self._config = config
        self._architecture = architecture_of(file)
        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        number = numbers[file.metadata["general.architecture"]]
        self._names = gguf.get_tensor_name_map(number, config.num_hidden_layers)

    def key(self, parameter: str) -> str:
        """The name of a parameter's tensor in the file.

        Raises:
            ValueError: the file does not have it.
        """
        if parameter == "lm_head.weight" and self._config.tie_word_embeddings:
            return "token_embd.weight"
        key = self._names.get_name(parameter, try_suffixes=(".weight", ".bias"))
        if key is None and self._names.get_name(parameter) is not None:
            key = f"{self._names.get_name(parameter)}.weight"  # not of a layer: sinks of attention
        if key not in self.file.tensors:
            raise ValueError(
                f"load_gguf: {self.file.path} lacks the tensor {key!r} for {parameter}"
            )
        return str(key)

    def kind(self, key: str) -> BlockKind | None:
        """The block format of a tensor; None if it holds floating numbers."""
        return self.file.tensors[key].kind

    def stored(self, key: str, shape: torch.Size) -> Tensor:
        """A tensor as it is stored: floating, or blocks. It is not unused any more.

        Raises:
            ValueError: it has another shape.
        """
        found = self.file.tensors[key]
        # The file leaves out the only row of a gate.
        if found.shape not in (tuple(shape), tuple(shape[1:]) if shape[0] == 1 else None):
            raise ValueError(
                f"load_gguf: {self.file.path} has {key!r} in shape {list(found.shape)}, expected "
                f"{list(shape)}"
            )
        self.unused.discard(key)
        order = self._row_order(key, shape[0])
        if order is not None:
            # What is copied is not read through the map, whose pages would stay in memory too.
            return self.file.read(key)[order]
        tensor = self.file.tensor(key)
        return tensor.unsqueeze(0) if len(found.shape) < len(shape) else tensor

    def floating(self, key: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor of floating numbers, in a dtype.

        Raises:
            ValueError: it has another shape, or is in blocks.
        """
        if self.kind(key) is not None:
            raise ValueError(
                f"load_gguf: {self.file.path} stores {key!r} in {self.kind(key)}, which is "
                "supported for the weights of linear layers, experts and embeddings only"
            )
        tensor = self.stored(key, shape)
        if self._architecture.norms_plus_one and key.endswith("norm.weight"):
            tensor = tensor.float() - 1
        return tensor.to(dtype)

    def joined(
        self, keys: Sequence[str], shape: torch.Size, dtype: torch.dtype, by_turns: bool
    ) -> Tensor:
        """Tensors of all experts, which are of one kind, as one: the rows of an expert one behind
        the other, or by turns. An expert at a time is read, so no part is twice in memory.

        Raises:
            ValueError: one has another shape.
        """
        experts, rows = shape[:2]
        entry = self.stored(keys[0], shape)
        wanted = dtype if self.kind(keys[0]) is None else entry.dtype
        whole = torch.empty((experts, len(keys) * rows, *entry.shape[2:]), dtype=wanted)
        for part, key in enumerate(keys):
            self.stored(key, shape)
            own = (
                slice(part, None, len(keys)) if by_turns else slice(part * rows, (part + 1) * rows)
            )
            for expert in range(experts):
                whole[expert, own].copy_(self.file.read(key, expert))
        return whole

    def _row_order(self, key: str, rows: int) -> Tensor | None:
        """The row in the file for each row in transformers; None if the order is the same."""
        part = key.split(".")[-2]
        if not self._architecture.neighbouring_pairs or part not in ("attn_q", "attn_k"):
            return None
        config = self._config
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).flatten()
