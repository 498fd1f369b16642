"""With two GPUs: a kernel runs where its arguments are, not on the current GPU."""

from __future__ import annotations

import pytest
import torch
from fusewheel.dispatch.operator import Operator
from on_gpu.gpu.arguments import assert_same_bits, called, samples, tensors

SECOND = "cuda:1"


@pytest.fixture(scope="module", autouse=True)
def _two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")


def test_the_second_gpu_gives_what_the_first_gives(operator: Operator):
    if torch.cuda.get_device_capability(0) != torch.cuda.get_device_capability(1):
        pytest.skip("the GPUs are of different kinds")
    for first, second in zip(samples(operator), samples(operator, SECOND), strict=True):
        with torch.cuda.device(0):
            results = called(operator, second)
        assert all(tensor.device == torch.device(SECOND) for tensor in results)
        assert_same_bits(results, called(operator, first))


def test_arguments_on_two_gpus_are_refused(operator: Operator):
    for arguments in samples(operator):
        if len(tensors(arguments)) < 2:
            continue
        last = max(i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor))
        mixed = [a.to(SECOND) if i == last else a for i, a in enumerate(arguments)]
        with pytest.raises(RuntimeError, match=f"{operator.name}: .* must be on the device of"):
            operator.overload(*mixed)
