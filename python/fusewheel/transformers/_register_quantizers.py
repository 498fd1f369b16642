"""Makes transformers load quantised checkpoints with the layers of this library."""

from __future__ import annotations


def register_quantizers() -> None:
    """Lets `from_pretrained` of transformers load checkpoints of GPTQ, AWQ, bitsandbytes (4 bits)
    and FP8 with the layers of this library. Call it once, before a model is loaded; more calls do
    no harm.

    The weights are multiplied as they are stored: nothing is rounded, and no weight becomes a
    floating matrix in memory. Activations, biases and adapters have gradients. `save_pretrained`
    writes the checkpoint's own format again. The packages that wrote the checkpoint (gptqmodel,
    autoawq, bitsandbytes) are not needed.

    Only checkpoints that are quantised already are loaded in this way: a `quantization_config` for
    a model with floating weights, or one with `dequantize=True`, does what it did before.

    Source: `transformers.quantizers`; the classes of `fusewheel.quantization.checkpoints` say how
    each format stores a weight.

    Raises:
        ImportError: transformers is not installed, or too old.
    """
    try:
        from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

        from fusewheel.transformers._quantizer import quantizer
    except ImportError as error:
        raise ImportError(
            "fusewheel.register_quantizers needs the package transformers, version 5.23 or newer: "
            f"pip install -U transformers ({error})"
        ) from error
    from fusewheel.quantization.checkpoints import FORMATS

    for name, format in FORMATS.items():
        AUTO_QUANTIZER_MAPPING[name] = quantizer(AUTO_QUANTIZER_MAPPING[name], format)
