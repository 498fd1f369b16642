import pytest
import torch
from fusewheel.quantization import (
    dequantize_int4,
    dequantize_int8,
    pack_int4,
    unpack_int4,
)
from fusewheel.quantization.formats import packed_numbers


def test_packing_is_undone_by_unpacking():
    codes = torch.randint(0, 16, (3, 5, 96))
    packed = pack_int4(codes)
    assert packed.shape == (3, 5, 48) and packed.dtype == torch.uint8
    assert torch.equal(unpack_int4(packed), codes.to(torch.uint8))
    # Byte 1 of the second block of 32: elements 33 and 49.
    assert packed[0, 0, 17] == codes[0, 0, 33] + 16 * codes[0, 0, 49]
    assert unpack_int4(pack_int4(torch.zeros(0, 32, dtype=torch.int8))).shape == (0, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codes_that_are_rounded_numbers_are_packed_alike(dtype):
    codes = torch.randint(0, 16, (3, 5, 96))
    assert torch.equal(packed_numbers(codes.to(dtype)), pack_int4(codes))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(2, 33, dtype=torch.uint8), "multiple of 32"),
        (torch.zeros(2, 32), r"must be integers, got torch\.float32"),
        (torch.full((2, 32), 16), "must be 0 to 15"),
        (torch.full((2, 32), -1), "must be 0 to 15"),
    ],
)
def test_what_cannot_be_packed_is_refused(codes, message):
    with pytest.raises(ValueError, match=message):
        pack_int4(codes)


def test_what_cannot_be_unpacked_is_refused():
    with pytest.raises(ValueError, match=r"must be uint8, got torch\.int8"):
        unpack_int4(torch.zeros(2, 16, dtype=torch.int8))
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        unpack_int4(torch.zeros(2, 15, dtype=torch.uint8))


def test_dequantized_weights_are_float32_or_as_wide_as_their_scales():
    int8, int4 = torch.ones(2, 64, dtype=torch.int8), torch.full((2, 32), 0x21, dtype=torch.uint8)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        scales = torch.tensor([[0.5, 1.0], [2.0, 4.0]], dtype=dtype)
        w = dequantize_int8(int8, scales)
        assert w.dtype == wide and torch.equal(w, scales.to(wide).repeat_interleave(32, 1))
        w = dequantize_int4(int4, scales, -scales)
        codes = torch.tensor([1] * 16 + [2] * 16).repeat(2)
        assert w.dtype == wide
        assert torch.equal(w, (codes - 1) * scales.to(wide).repeat_interleave(32, 1))


def test_shapes_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match=r"scales must have shape \[2\] or"):
        dequantize_int8(torch.ones(2, 64, dtype=torch.int8), torch.ones(3))
    codes = torch.zeros(2, 32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"must have shape \[2, 1\]"):
        dequantize_int4(codes, torch.ones(2, 2), torch.ones(2, 2), 64)
    with pytest.raises(ValueError, match="group_size must be 32, 64 or 128, got 16"):
        dequantize_int4(codes, torch.ones(2, 4), torch.ones(2, 4), 16)
