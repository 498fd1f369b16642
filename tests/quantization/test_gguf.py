import gguf
import numpy as np
import pytest
import torch
from fusewheel.quantization import dequantize_int4, dequantize_int8, from_gguf

BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def blocks(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes whose scales happen to be finite."""
    generator = np.random.default_rng(seed)
    size = BYTES[kind]
    raw = generator.integers(0, 256, (rows * columns // 32, size), dtype=np.uint8)
    scales = 4 if kind == "Q4_1" else 2
    for start in range(0, scales, 2):
        half = raw[:, start : start + 2].copy().view(np.float16)
        raw[~np.isfinite(half[:, 0]), start + 1] = 0
    return raw.reshape(rows, columns // 32 * size)


def decoded(quantized) -> torch.Tensor:
    return (dequantize_int8 if len(quantized) == 2 else dequantize_int4)(*quantized)


@pytest.mark.parametrize("kind", list(BYTES))
def test_every_value_is_that_of_the_gguf_package(kind):
    for seed in range(5):
        raw = blocks(kind, 33, 256, seed)
        want = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
        raw.setflags(write=False)
        for data in (raw, torch.from_numpy(raw.copy())):
            got = decoded(from_gguf(data, kind, (33, 256)))
            assert got.dtype == torch.float32
            np.testing.assert_array_equal(got.numpy(), want)


def test_scales_are_float16_unless_the_zero_overflows():
    raw = gguf.quantize(np.random.randn(4, 64).astype(np.float32), gguf.GGMLQuantizationType.Q4_0)
    weight = from_gguf(raw, "Q4_0", (4, 64))
    assert weight.scales.dtype == weight.zeros.dtype == torch.float16
    raw[0, :2] = np.array([10000.0], dtype=np.float16).view(np.uint8)
    weight = from_gguf(raw, "Q4_0", (4, 64))
    assert weight.zeros.dtype == torch.float32 and weight.zeros[0, 0] == -80000.0


def test_the_data_is_copied():
    for kind in BYTES:
        raw = blocks(kind, 2, 32)
        quantized = from_gguf(raw, kind, (2, 32))
        before = decoded(quantized).clone()
        raw[:] = 0
        assert torch.equal(decoded(quantized), before)


def test_what_does_not_fit_is_refused():
    raw = blocks("Q4_0", 2, 64)
    with pytest.raises(ValueError, match="kind must be one of Q4_0, Q4_1, Q8_0, got 'Q6_K'"):
        from_gguf(raw, "Q6_K", (2, 64))
    with pytest.raises(ValueError, match=r"data must be 80 bytes .* got 72 elements"):
        from_gguf(raw, "Q4_1", (2, 64))
    with pytest.raises(ValueError, match="multiple of 32, got"):
        from_gguf(raw, "Q4_0", (4, 33))
    with pytest.raises(ValueError, match=r"got 72 elements of torch\.int8"):
        from_gguf(raw.view(np.int8), "Q4_0", (2, 64))
    raw[0, :2] = np.array([np.inf], dtype=np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="finite scales"):
        from_gguf(raw, "Q4_0", (2, 64))
