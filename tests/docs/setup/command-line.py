"""A quantised model in the folder that the page reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fusewheel
from fusewheel.quantization import LinearInt4
from tiny_gguf import small_llama


def around(names: dict[str, Any]) -> Iterator[None]:
    fusewheel.transformers.save_quantized(small_llama(layers=1), "smollm2-int4")
    yield
    assert any(isinstance(module, LinearInt4) for module in names["model"].modules())
