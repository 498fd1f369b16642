"""`torch_compile_backend="fusewheel"` in the Trainer of transformers."""

from __future__ import annotations

from typing import Any

# accelerate writes the names of backends in capitals, and hands them to PyTorch in small letters.
NAME = "FUSEWHEEL"


def register_backend() -> None:
    """Lets accelerate take "fusewheel" for a backend of `torch.compile`.

    accelerate has a fixed list of backends, an enumeration, and the Trainer goes through it. Python
    asks `_missing_` for a value that an enumeration does not list.
    """
    from accelerate.utils.dataclasses import DynamoBackend

    kind: Any = DynamoBackend
    own = str.__new__(kind, NAME)
    own._name_ = own._value_ = NAME
    other = kind._missing_

    def missing(_: Any, value: object) -> Any:
        return own if value == NAME else other(value)

    kind._missing_ = classmethod(missing)
