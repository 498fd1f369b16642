"""Language models with quantised weights in a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch

from fusewheel._core.version import __version__
from fusewheel.quantization.experts import QuantizedExperts
from fusewheel.quantization.model import quantize_
from fusewheel.quantization.modules import LinearInt4, LinearInt8
from fusewheel.quantization.report import QuantizationReport

SETTINGS, _WEIGHTS = "fusewheel.json", "model.safetensors"


def save_quantized(
    model: Any,
    folder: str | Path,
    kind: Literal["int4", "int8"] = "int4",
    group_size: int = 32,
    dynamic: bool = False,
) -> QuantizationReport:
    """Quantises the linear layers of a model of transformers in place, and writes it to a folder.

    The folder gets `config.json`, the weights as `model.safetensors`, and `fusewheel.json`, which
    says what was quantised. `load_quantized` reads it.

    Args:
        model: a language model of transformers.
        folder: where to write; it is made if it is not there.
        kind: `"int4"` (default) or `"int8"`, see `fusewheel.quantize_`.
        group_size: in features that share a scale; default 32.
        dynamic: whether layers round their activations to int8 too; default False.

    Returns:
        the report of `fusewheel.quantize_`.

    Raises:
        ValueError: an argument is not as above.
    """
    from safetensors.torch import save_file

    report = quantize_(model, kind, group_size, dynamic=dynamic)
    kinds = (LinearInt4, LinearInt8, QuantizedExperts)
    layers = [n for n, m in model.named_modules() if isinstance(m, kinds)]
    settings = {"kind": kind, "group_size": group_size, "dynamic": dynamic, "layers": layers}
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(path)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(path)
    # A file of safetensors holds no two names of one tensor.
    state: dict[str, torch.Tensor] = {}
    seen: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        first = seen.setdefault(tensor.untyped_storage().data_ptr(), name)
        if first != name and torch.equal(state[first], tensor):
            shared[name] = first
        else:
            state[name] = tensor.contiguous()
    save_file(state, path / _WEIGHTS)
    about = {"fusewheel": __version__, **settings, "shared": shared}
    (path / SETTINGS).write_text(json.dumps(about, indent=2) + "\n")
    return report


def load_quantized(folder: str | Path, **options: Any) -> Any:
    """A language model that `save_quantized` or `fusewheel quantize` wrote, in eval mode.

    The weights are read once, and memory for the model before it was quantised is never needed.

    Args:
        folder: where it was written.
        **options: for `AutoModelForCausalLM.from_config`, `attn_implementation` for example.

    Raises:
        FileNotFoundError: the folder has no such model.
        ImportError: transformers, accelerate or safetensors is not installed.
    """
    from accelerate import init_empty_weights
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    path = Path(folder)
    if not (path / SETTINGS).is_file():
        raise FileNotFoundError(f"load_quantized: folder must have a {SETTINGS}, got {path}")
    settings = json.loads((path / SETTINGS).read_text())
    config = AutoConfig.from_pretrained(path)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype, **options)
    layers = set(settings["layers"])
    quantize_(
        model,
        settings["kind"],
        settings["group_size"],
        filter_fn=lambda _, name: name in layers,
        dynamic=settings["dynamic"],
    )
    state = load_file(path / _WEIGHTS)
    state |= {name: state[first] for name, first in settings["shared"].items()}
    model.load_state_dict(state, assign=True)
    return model.eval()


def copy_tokenizer(source: str | Path, folder: str | Path) -> None:
    """Copies the files of a tokenizer, if `source` is a folder; else loads and saves it."""
    path = Path(source)
    if not path.is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(str(source)).save_pretrained(folder)
        return
    for pattern in ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges*"):
        for file in path.glob(pattern):
            if file.resolve().parent != Path(folder).resolve():
                shutil.copy(file, folder)
