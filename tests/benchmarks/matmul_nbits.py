"""ONNX Runtime's product of 8-bit activations and 4-bit weights, as a competitor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Activations are rounded to 8 bits, as ONNX Runtime GenAI's int4 models do on a CPU.
ACCURACY_LEVEL = 4
BLOCK = 32


def is_there() -> bool:
    """Whether ONNX Runtime and what makes its models are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


class Products:
    """A model that multiplies the same rows with `copies` random weights, one after another.

    A model of its own for each weight would have threads of its own, too.
    """

    def __init__(self, inputs: int, outputs: int, copies: int, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Between its turns, its threads would take the cores from the others.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = onnxruntime.InferenceSession(
            _model(inputs, outputs, copies), options, providers=["CPUExecutionProvider"]
        )
        self.inputs, self.outputs, self.copies = inputs, outputs, copies

    def of(self, rows: int) -> Callable[[], list[np.ndarray]]:
        """Runs the model on so many rows; returns the results of all weights."""
        from onnxruntime import OrtValue

        x = np.random.default_rng(0).standard_normal((rows, self.inputs), np.float32)
        binding = self._session.io_binding()
        binding.bind_cpu_input("x", x)
        # Memory that is there already: a call takes none.
        results = [np.zeros((rows, self.outputs), np.float32) for _ in range(self.copies)]
        for i, y in enumerate(results):
            binding.bind_ortvalue_output(f"y{i}", OrtValue.ortvalue_from_numpy(y))

        def run() -> list[np.ndarray]:
            self._session.run_with_iobinding(binding)
            return binding.copy_outputs_to_cpu()

        return run


def _model(inputs: int, outputs: int, copies: int) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    shape = (outputs, inputs // BLOCK, BLOCK // 2)
    sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": BLOCK}
    nodes, stored = [], []
    for i in range(copies):
        codes = random.integers(0, 256, shape, np.uint8)
        scales = random.random(outputs * (inputs // BLOCK), np.float32) / 100
        stored += [
            numpy_helper.from_array(codes, f"w{i}"),
            numpy_helper.from_array(scales, f"s{i}"),
        ]
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                ["x", f"w{i}", f"s{i}"],
                [f"y{i}"],
                domain="com.microsoft",
                accuracy_level=ACCURACY_LEVEL,
                **sizes,
            )
        )
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", inputs])],
        [
            helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["rows", outputs])
            for i in range(copies)
        ],
        stored,
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions)
    model.ir_version = 9  # that of the opset
    return bytes(model.SerializeToString())
