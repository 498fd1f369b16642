"""A quantizer of transformers for checkpoints that are quantised already.

It is imported only after transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.quantizers.base import HfQuantizer

from fusewheel.quantization.block_modules import LinearBlocks
from fusewheel.quantization.checkpoints import CheckpointFormat, Reordered, StoredLinear
from fusewheel.quantization.modules import LinearInt4, LinearInt8

_DTYPES = {
    **{"U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64},
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu},
}
_LAYERS = (LinearBlocks, LinearInt4, LinearInt8, Reordered)


class _Renaming(WeightRenaming):
    """From the name of a tensor to that of the buffer of a `StoredLinear`."""

    __slots__ = ()


class StoredQuantizer(HfQuantizer):
    """Reads the layers of one format.

    Attributes:
        original: the quantizer of transformers, for models that are not quantised yet.
        format_class: the format.
    """

    original: ClassVar[Any]
    format_class: ClassVar[type[CheckpointFormat]]

    def __new__(cls, quantization_config: Any, **options: Any) -> Any:
        """Ours for a quantised checkpoint, otherwise the original one."""
        if not options.get("pre_quantized", True) or getattr(
            quantization_config, "dequantize", False
        ):
            return cls.original(quantization_config, **options)
        return super().__new__(cls)

    def __init__(self, quantization_config: Any, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.format = self.format_class.of(quantization_config)

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **options: Any
    ) -> None:
        """Puts a `StoredLinear` where the checkpoint has the tensors of a quantised layer."""
        found = _layers(model, _headers(checkpoint_files), self.format)
        for name, tensors in found.items():
            linear = model.get_submodule(name)
            try:
                self.format.check(tensors, linear.out_features, linear.in_features)
            except ValueError as error:
                raise _refused(model, name, error) from error
            model.set_submodule(name, StoredLinear(linear, tensors))

    def get_weight_conversions(self) -> list[Any]:
        """Tensors whose names have dots are loaded into buffers without dots."""
        names = [*self.format.required, *self.format.optional]
        return [
            _Renaming(rf"\.{name.replace('.', '[.]')}$", f".{StoredLinear.held(name)}")
            for name in names
            if "." in name
        ]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        """Makes the layers that multiply, one by one, so that no tensor is held twice."""
        for name, module in list(model.named_modules()):
            if not isinstance(module, StoredLinear):
                continue
            sizes = module.out_features, module.in_features
            try:
                layer = self.format.layer(module.stored(), *sizes, module.bias)
            except ValueError as error:
                raise _refused(model, name, error) from error
            layer.stored_as = self.format  # type: ignore[assignment]
            model.set_submodule(name, layer.train(module.training))
        kept = [one for one in model._weight_conversions if not isinstance(one, _Renaming)]
        model._weight_conversions = kept
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The state dictionary with the tensors of the checkpoint's format."""
        state = model.state_dict()
        layers = {n: m for n, m in model.named_modules() if isinstance(m, _LAYERS)}
        for name, layer in layers.items():
            if name.rpartition(".")[0] in layers:
                continue  # a part of a `Reordered`
            format = getattr(layer, "stored_as", None)
            if format is None:
                raise ValueError(
                    f"save_pretrained: layer {name!r} was not in the checkpoint in this form "
                    "(quantize_ made it); save its state_dict instead"
                )
            for key in [key for key in state if key.startswith(f"{name}.")]:
                del state[key]
            stored = format.tensors(layer)
            state |= {f"{name}.{key}": tensor.contiguous() for key, tensor in stored.items()}
            if layer.bias is not None:
                state[f"{name}.bias"] = layer.bias.detach()
        return state, {}

    def is_serializable(self) -> bool:
        """`save_pretrained` works."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained."""
        return True

    @property
    def is_compileable(self) -> bool:
        """The layers can be compiled."""
        return True


def quantizer(original: Any, format: type[CheckpointFormat]) -> Any:
    """A class for one format, in the place of `original`."""
    if issubclass(original, StoredQuantizer):
        return original
    attributes = {"original": original, "format_class": format, "__module__": __name__}
    return type(f"{format.__name__}Quantizer", (StoredQuantizer,), attributes)


def _refused(model: Any, name: str, error: ValueError) -> ValueError:
    return ValueError(f"{model.config.name_or_path}: layer {name!r}: {error}")


def _headers(files: list[str] | None) -> dict[str, Tensor]:
    """All tensors of a checkpoint on the device `meta`; their data is not read."""
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        raise ValueError(
            f"quantised checkpoints are read from files of safetensors only, got {files}"
        )
    found = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                # Of other dtypes no tensor of a quantised layer is.
                dtype = _DTYPES.get(part.get_dtype(), torch.bool)
                found[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
    return found


def _layers(
    model: Any, headers: Mapping[str, Tensor], format: CheckpointFormat
) -> dict[str, dict[str, Tensor]]:
    """The tensors of each quantised layer, by its name in the model."""
    conversions = get_model_conversion_mapping(model)
    renamings = [one for one in conversions if isinstance(one, WeightRenaming)]
    converters = [one for one in conversions if isinstance(one, WeightConverter)]
    own = model.state_dict()
    mark = f".{format.required[-1]}"
    found = {}
    for key in headers:
        if not key.endswith(mark):
            continue
        stem = key[: -len(mark)]
        weight, _ = rename_source_key(
            f"{stem}.weight", renamings, converters, model.base_model_prefix, own
        )
        name = weight.removesuffix(".weight")
        try:
            module = model.get_submodule(name)
        except AttributeError:
            module = None
        if type(module) is not nn.Linear:
            raise ValueError(
                f"{model.config.name_or_path}: the checkpoint has a quantised layer {stem!r}, "
                "which is no linear layer in the model. Mixtures of experts are not supported"
            )
        every = (*format.required, *format.optional)
        tensors = {one: headers[f"{stem}.{one}"] for one in every if f"{stem}.{one}" in headers}
        missing = [one for one in format.required if one not in tensors]
        if missing:
            raise ValueError(
                f"{model.config.name_or_path}: layer {stem!r} lacks {', '.join(missing)}"
            )
        found[name] = tensors
    if not found:
        raise ValueError(
            f"{model.config.name_or_path}: config.json says that the checkpoint is quantised, but "
            f"no tensor is named '...{mark}'"
        )
    return found
