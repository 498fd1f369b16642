"""Builds a transformers model over the memory map of a GGUF file."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from fusewheel._core.garbage import without_collections
from fusewheel.quantization.gguf.config import read_config
from fusewheel.quantization.gguf.file import GgufFile
from fusewheel.quantization.gguf.fill import fill
from fusewheel.quantization.gguf.rotary import FACTORS
from fusewheel.quantization.gguf.tensors import Tensors

# Divides the frequencies of the rotary embedding (Llama 3).
_FREQUENCIES = "rope_freqs.weight"


def load_gguf(
    path: str | os.PathLike[str], dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, Any]:
    """Loads a language model from a GGUF file, with its weights as they are stored.

    Quantised weights stay in their blocks, over a private memory map of the file: they are not
    copied and never become floating numbers in memory. There are two exceptions: in files of the
    architectures `llama` and `smollm3` the rows of two weights of each layer are copied into
    transformers' order, and the blocks of gate and up of experts are read into one weight. Linear
    layers are `LinearBlocks`, the experts of a mixture `QuantizedExperts`. A quantised embedding is
    an `EmbeddingBlocks`; an output layer that shares its weight holds the same blocks. Activations,
    biases and adapters have gradients.

    | architecture in the file | models |
    |---|---|
    | `llama` | Llama, Mistral, Mixtral, SmolLM2 |
    | `qwen2`, `qwen2moe`, `qwen3`, `qwen3moe` | Qwen2, Qwen2.5, Qwen3, with and without experts |
    | `gemma`, `gemma2`, `gemma3` | Gemma, Gemma 2, the text part of Gemma 3 |
    | `phi3` | Phi-3, Phi-3.5-mini, Phi-4 |
    | `olmoe`, `smollm3`, `gpt-oss` | OLMoE, SmolLM3, gpt-oss |

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the model classes and the
    tokenizer are those of transformers, the names of tensors those of the package `gguf`.

    Args:
        path: the file. Its architecture is one of those above; its tensors are F32, F16, BF16 or
            one of the block formats that `linear_blocks` has from GGUF files. It must not be
            changed while the model is used.
        dtype: of activations and of weights that the file stores as floating numbers; default
            float32.

    Returns:
        The model in evaluation mode, of transformers' class for causal language models, and the
        tokenizer; None for a file without one.

    Raises:
        TypeError: `path` is neither text nor a path.
        ModuleNotFoundError: transformers or gguf is not installed.
        ValueError: the file is damaged, or holds what is not supported; the message says what.
        OSError: the file cannot be read.
    """
    with without_collections(stays=True):
        return _loaded(GgufFile(path), dtype)


def _loaded(file: GgufFile, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    config = read_config(file)
    model: Any = _on_meta(config, dtype)
    tensors = Tensors(file, config)
    fill(model, tensors, dtype)
    _check_unused(model, tensors, FACTORS if config.model_type == "phi3" else set())
    # The layers share their blocks already. There is no `weight` that could be tied again.
    model.config.tie_word_embeddings = False
    model.eval()
    return model, _tokenizer(file)


def _on_meta(config: Any, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    # Buffers are computed when their modules are made.
    for name, module in list(model.named_modules()):
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
        elif any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(name, type(module)(config))
    return model


def _check_unused(model: nn.Module, tensors: Tensors, known: set[str]) -> None:
    """Uses the tensors that are no parameters, and refuses those that nothing is known of."""
    unused = tensors.unused - known
    if _FREQUENCIES in unused:
        unused.discard(_FREQUENCIES)
        _divide_frequencies(model, tensors)
    if unused:
        raise ValueError(
            f"load_gguf: {tensors.file.path} has tensors that a {type(model).__name__} does not "
            f"have: {', '.join(sorted(unused)[:5])}"
        )


def _divide_frequencies(model: nn.Module, tensors: Tensors) -> None:
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name in ("inv_freq", "original_inv_freq"):
                factors = tensors.floating(_FREQUENCIES, buffer.shape, torch.float32)
                setattr(module, name, buffer / factors)


def _tokenizer(file: GgufFile) -> Any:
    if "tokenizer.ggml.tokens" not in file.metadata:
        return None
    from transformers import PreTrainedTokenizerFast

    folder, name = os.path.split(os.path.abspath(file.path))
    # Not AutoTokenizer, which reads the whole header a second time to find a class: 130 MiB and 4 s
    # for 49,000 tokens.
    return PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=name)
