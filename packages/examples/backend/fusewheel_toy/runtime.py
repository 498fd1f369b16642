"""What PyTorch asks a device for, as the module `torch.toy`. There is one, in ordinary memory."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor


def is_available() -> bool:
    """Whether there is such a device."""
    return True


def device_count() -> int:
    """How many there are."""
    return 1


def current_device() -> int:
    """The index of the one in use."""
    return 0


class device:
    """Makes a device the current one within a block, as `torch.cuda.device`; there is no other."""

    def __init__(self, device: object) -> None:
        self.idx = 0

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None: ...


def manual_seed_all(seed: int) -> None:
    """Its random numbers are the CPU's, which has been given the seed already."""


def get_rng_state(device: object = "toy") -> Tensor:
    """The state of the random numbers."""
    return torch.get_rng_state()


def set_rng_state(state: Tensor, device: object = "toy") -> None:
    """Sets the state of the random numbers."""
    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may compute in. With any other dtype PyTorch warns and leaves autocast off."""
    return [torch.float32]


def _is_in_bad_fork() -> bool:
    return False
