// bfloat16 and float16, bit by bit.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};

namespace fusewheel::emulation {

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace fusewheel::emulation

inline float __bfloat162float(__nv_bfloat16 value) {
  return fusewheel::emulation::as_float(static_cast<uint32_t>(value.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const uint32_t bits = fusewheel::emulation::as_bits(value);
  if (value != value) {
    return {0x7fff};
  }
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline float __half2float(__half value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  // 2^112 moves the exponent; denormals become normal on the way.
  const float scaled = fusewheel::emulation::as_float(magnitude) * 0x1p112f;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;
  return fusewheel::emulation::as_float(sign | special | fusewheel::emulation::as_bits(scaled));
}

inline __half __float2half_rn(float value) {
  const uint32_t bits = fusewheel::emulation::as_bits(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {0x7fff};
  }
  uint32_t half = 0;
  if (magnitude >= 0x47800000u) {  // too large
    half = 0x7c00;
  } else if (magnitude < 0x38800000u) {
    // Adding 0.5 lines a denormal's bits up at the bottom of the mantissa, rounded to even.
    half = fusewheel::emulation::as_bits(fusewheel::emulation::as_float(magnitude) + 0.5f) -
           0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}
