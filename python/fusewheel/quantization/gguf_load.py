"""Builds a transformers model over the memory map of a GGUF file."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from fusewheel.quantization.block_modules import EmbeddingBlocks, LinearBlocks
from fusewheel.quantization.gguf_config import read_config
from fusewheel.quantization.gguf_file import GgufFile

# For these architectures the converter reorders the rows of attn_q and attn_k: rotary pairs are
# half a head apart in transformers and neighbours in the file.
_NEIGHBOURING_PAIRS = ("llama",)
# Divides the frequencies of the rotary embedding (Llama 3).
_FREQUENCIES = "rope_freqs.weight"


def load_gguf(
    path: str | os.PathLike[str], dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, Any]:
    """Loads a language model from a GGUF file, with its weights as they are stored.

    Quantised weights stay in their blocks, over a private memory map of the file: they are not
    copied and never become floating numbers in memory. (In files of the architecture `llama` the
    rows of two weights of each layer are put in transformers' order, which copies these blocks.)
    Linear layers are `LinearBlocks`. A quantised embedding is an `EmbeddingBlocks`; an output layer
    that shares its weight holds the same blocks. Activations, biases and adapters have gradients.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the model classes and the
    tokenizer are those of transformers, the names of tensors those of the package `gguf`.

    Args:
        path: the file. Its architecture is `llama`, `qwen2` or `qwen3`; its tensors are F32, F16,
            BF16 or one of the block formats that `linear_blocks` has from GGUF files. It must not
            be changed while the model is used.
        dtype: of activations and of weights that the file stores as floating numbers; default
            float32.

    Returns:
        The model in evaluation mode, of transformers' class for causal language models, and the
        tokenizer; None for a file without one.

    Raises:
        ModuleNotFoundError: transformers or gguf is not installed.
        ValueError: the file is damaged, or holds what is not supported; the message says what.
        OSError: the file cannot be read.
    """
    file = GgufFile(path)
    config = read_config(file)
    model: Any = _on_meta(config, dtype)
    _fill(model, config, file, dtype)
    # The layers share their blocks already. There is no `weight` that could be tied again.
    model.config.tie_word_embeddings = False
    model.eval()
    return model, _tokenizer(file)


def _on_meta(config: Any, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    # Rotary embeddings compute their buffers when they are made.
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(name, type(module)(config))
    return model


def _fill(model: nn.Module, config: Any, file: GgufFile, dtype: torch.dtype) -> None:
    """Gives every parameter its tensor, and refuses tensors that no parameter has."""
    names = _Names(file, config)
    unused = set(file.tensors)
    for name, module in list(model.named_modules()):
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        keys = {parameter: names.key(f"{name}.{parameter}") for parameter in own}
        tensors = {p: names.tensor(key, own[p].shape) for p, key in keys.items()}
        unused -= set(keys.values())
        kind = file.tensors[keys["weight"]].kind if "weight" in keys else None
        floating = {
            p: Parameter(_floating(file, keys[p], t).to(dtype))
            for p, t in tensors.items()
            if kind is None or p != "weight"
        }
        if kind is None:
            for parameter, tensor in floating.items():
                module.register_parameter(parameter, tensor)
        elif type(module) is nn.Embedding:
            model.set_submodule(name, EmbeddingBlocks(tensors["weight"], kind, dtype))
        elif type(module) is nn.Linear:
            layer = LinearBlocks(tensors["weight"], kind, floating.get("bias"))
            model.set_submodule(name, layer)
        else:
            raise ValueError(
                f"load_gguf: {file.path} stores {keys['weight']!r} in {kind}, which is not "
                f"supported for a {type(module).__name__}"
            )
    if _FREQUENCIES in unused:
        unused.discard(_FREQUENCIES)
        _divide_frequencies(model, file)
    if unused:
        raise ValueError(
            f"load_gguf: {file.path} has tensors that a {type(model).__name__} does not have: "
            f"{', '.join(sorted(unused)[:5])}"
        )


def _floating(file: GgufFile, key: str, tensor: Tensor) -> Tensor:
    if file.tensors[key].kind is not None:
        raise ValueError(
            f"load_gguf: {file.path} stores {key!r} in {file.tensors[key].kind}, which is "
            "supported for the weights of linear layers and embeddings only"
        )
    return tensor


def _divide_frequencies(model: nn.Module, file: GgufFile) -> None:
    factors = _floating(file, _FREQUENCIES, file.tensor(_FREQUENCIES)).float()
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name in ("inv_freq", "original_inv_freq"):
                if buffer.shape != factors.shape:
                    raise ValueError(
                        f"load_gguf: {file.path} has {list(factors.shape)} factors in "
                        f"{_FREQUENCIES!r}, expected {list(buffer.shape)}"
                    )
                setattr(module, name, buffer / factors)


class _Names:
    """The tensors of a file by the names of parameters in transformers."""

    def __init__(self, file: GgufFile, config: Any) -> None:
        import gguf

        self._file = file
        self._config = config
        self._architecture = file.metadata["general.architecture"]
        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        layers = config.num_hidden_layers
        self._names = gguf.get_tensor_name_map(numbers[self._architecture], layers)

    def key(self, parameter: str) -> str:
        """The name of a parameter's tensor in the file.

        Raises:
            ValueError: the file does not have it.
        """
        key = self._names.get_name(parameter, try_suffixes=(".weight", ".bias"))
        if key == "output.weight" and self._config.tie_word_embeddings:
            key = "token_embd.weight"
        if key not in self._file.tensors:
            raise ValueError(
                f"load_gguf: {self._file.path} lacks the tensor {key!r} for {parameter}"
            )
        return str(key)

    def tensor(self, key: str, shape: torch.Size) -> Tensor:
        """The tensor, in the order of transformers.

        Raises:
            ValueError: it has another shape.
        """
        found = self._file.tensors[key]
        if found.shape != tuple(shape):
            raise ValueError(
                f"load_gguf: {self._file.path} has {key!r} in shape {list(found.shape)}, expected "
                f"{list(shape)}"
            )
        tensor = self._file.tensor(key)
        order = self._row_order(key, shape[0])
        return tensor if order is None else tensor[order]

    def _row_order(self, key: str, rows: int) -> Tensor | None:
        """The row in the file for each row in transformers; None if the order is the same."""
        part = key.split(".")[-2]
        if self._architecture not in _NEIGHBOURING_PAIRS or part not in ("attn_q", "attn_k"):
            return None
        config = self._config
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).flatten()


def _tokenizer(file: GgufFile) -> Any:
    if "tokenizer.ggml.tokens" not in file.metadata:
        return None
    from transformers import PreTrainedTokenizerFast

    folder, name = os.path.split(os.path.abspath(file.path))
    # Not AutoTokenizer, which reads the whole header a second time to find a class: 130 MiB and 4 s
    # for 49,000 tokens.
    return PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=name)
