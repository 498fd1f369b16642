"""The sentence encoders of the table, and ONNX Runtime on the same weights."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SHAPES: dict[str, dict[str, Any]] = {
    # What all-MiniLM-L6 and bge-base are made of; the vocabulary is BERT's.
    "MiniLM-L6": {
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
    },
    "bge-base": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
    },
}


class Encoder(nn.Module):
    """A BERT without its pooling: token ids and mask to hidden states `[batch, tokens, hidden]`."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        self.model = BertModel(BertConfig(**shape), add_pooling_layer=False).eval()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.model(input_ids=ids, attention_mask=mask, return_dict=False)[0]
        return hidden


def onnx_calls(
    model: nn.Module, inputs: tuple[Tensor, ...], threads: int
) -> dict[str, Callable[[], Any]]:
    """ONNX Runtime in float32 and with its dynamic int8 quantisation; none if it is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    names = ["ids", "mask"]
    feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    calls: dict[str, Callable[[], Any]] = {}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain, small = (Path(folder) / f"{name}.onnx" for name in ("plain", "int8"))
        torch.onnx.export(
            model, inputs, str(plain), dynamo=False, input_names=names, opset_version=17
        )
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
        for name, path in (("ort fp32", plain), ("ort int8", small)):
            session = onnxruntime.InferenceSession(str(path), options)
            calls[name] = lambda session=session: torch.from_numpy(session.run(None, feed)[0])
    return calls


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of the exporter, which is old and said to be so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
