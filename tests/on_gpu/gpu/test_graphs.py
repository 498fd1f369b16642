"""Operators in CUDA graphs: nothing waits for the GPU, and a replay reads the memory anew."""

from __future__ import annotations

import torch
from fusewheel.dispatch.operator import Operator
from on_gpu.gpu.arguments import assert_same_bits, called, samples, tensors


def test_a_captured_call_can_be_replayed(operator: Operator):
    for arguments in samples(operator):
        start = [tensor.clone() for tensor in tensors(arguments)]

        def reset(start=start, arguments=arguments) -> None:
            for tensor, before in zip(tensors(arguments), start, strict=True):
                tensor.copy_(before)

        wanted = [tensor.clone() for tensor in called(operator, arguments)]
        # What is made once, such as cuBLAS's memory, is not made within a capture.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            called(operator, arguments)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = called(operator, arguments)
        for tensor in results:
            tensor.zero_()
        reset()
        graph.replay()
        assert_same_bits(results, wanted)
