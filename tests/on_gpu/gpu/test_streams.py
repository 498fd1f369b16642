"""Kernels run on the caller's stream: behind what it has queued there, and beside other streams."""

from __future__ import annotations

import torch
from fusewheel.dispatch.operator import Operator
from on_gpu.gpu.arguments import assert_same_bits, called, samples, tensors

CYCLES = 20_000_000
"""About 10 ms of a GPU: longer than all that is queued behind it takes to be queued."""


def test_a_call_waits_for_what_its_stream_has_queued(operator: Operator):
    for arguments in samples(operator):
        start = [tensor.clone() for tensor in tensors(arguments)]
        wanted = [tensor.clone() for tensor in called(operator, arguments)]
        for tensor in tensors(arguments):
            tensor.zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
            for tensor, before in zip(tensors(arguments), start, strict=True):
                tensor.copy_(before)
            results = called(operator, arguments)
        stream.synchronize()
        assert_same_bits(results, wanted)


def test_two_streams_do_not_disturb_each_other(operator: Operator):
    if operator.mutates is not None:
        return
    for arguments in samples(operator):
        wanted = [tensor.clone() for tensor in called(operator, arguments)]
        torch.cuda.synchronize()
        found = []
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for turn in range(8):
            with torch.cuda.stream(streams[turn % 2]):
                found.append(called(operator, arguments))
        torch.cuda.synchronize()
        for results in found:
            assert_same_bits(results, wanted)
