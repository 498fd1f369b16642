// Plain vectors over the compiler's vector extension: as wide as the instruction set of this level.
// Arithmetic on half types happens in float; only load and store know them.
#pragma once

#include <fusewheel/geometry.h>

#include <cstdint>

#include "../isa.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename A>
struct VecOf;
template <>
struct VecOf<float> {
  typedef float type __attribute__((vector_size(kBytes)));
  typedef int32_t integer __attribute__((vector_size(kBytes)));
  typedef uint32_t bits __attribute__((vector_size(kBytes)));
  typedef uint16_t half __attribute__((vector_size(kBytes / 2)));
};
template <>
struct VecOf<double> {
  typedef double type __attribute__((vector_size(kBytes)));
  typedef int64_t integer __attribute__((vector_size(kBytes)));
};

template <typename A>
using Vec = typename VecOf<A>::type;
using Integers = VecOf<float>::integer;
using Bits = VecOf<float>::bits;
using Half = VecOf<float>::half;

// The type a kernel computes in.
template <typename T>
struct AccumulateOf {
  using type = float;
};
template <>
struct AccumulateOf<double> {
  using type = double;
};
template <typename T>
using Accumulate = typename AccumulateOf<T>::type;

template <typename A>
constexpr int kLanes = kBytes / static_cast<int>(sizeof(A));

template <typename To, typename From>
FUSEWHEEL_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <typename A>
FUSEWHEEL_INLINE Vec<A> splat(A value) {
  return value - Vec<A>{};  // exact for every value, -0 included
}

// The lanes of `from`, or of two vectors in a row, that `lanes` chooses.
#if defined(__clang__)
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, I lanes) {
  constexpr int count = sizeof(I) / sizeof(lanes[0]);
  V to;
  for (int i = 0; i < count; ++i) {
    to[i] = from[lanes[i] & (count - 1)];
  }
  return to;
}
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, V next, I lanes) {
  constexpr int count = sizeof(I) / sizeof(lanes[0]);
  V to;
  for (int i = 0; i < count; ++i) {
    const auto lane = lanes[i] & (count - 1);
    to[i] = (lanes[i] & count) == 0 ? from[lane] : next[lane];
  }
  return to;
}
#else
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, I lanes) {
  return __builtin_shuffle(from, lanes);
}
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, V next, I lanes) {
  return __builtin_shuffle(from, next, lanes);
}
#endif

// Half types in the integers' own terms, for levels without the instruction.

FUSEWHEEL_INLINE Vec<float> widen(Half half, BFloat16) {
#if defined(__aarch64__)
  // gcc 12 takes the general form apart, lane by lane.
  return bit_cast<Vec<float>>(vshll_n_u16(bit_cast<uint16x4_t>(half), 16));
#else
  return bit_cast<Vec<float>>(__builtin_convertvector(half, Bits) << 16);
#endif
}

// The upper half of each sum is the value rounded to the nearest, to even if there are two.
FUSEWHEEL_INLINE Bits rounding_bits(Vec<float> value) {
  const Bits bits = bit_cast<Bits>(value);
  return bits + 0x7fff + ((bits >> 16) & 1);
}

#if defined(__AVX512F__)
FUSEWHEEL_INLINE Half narrow(Vec<float> value, BFloat16) {
  const __m512 own = bit_cast<__m512>(value);
  const __mmask16 number = _mm512_cmp_ps_mask(own, own, _CMP_ORD_Q);
  const __m512i rounded = bit_cast<__m512i>(rounding_bits(value));
  const __m512i nan = _mm512_set1_epi32(0x7fc0);
  return bit_cast<Half>(_mm512_cvtepi32_epi16(_mm512_mask_srli_epi32(nan, number, rounded, 16)));
}
#else
FUSEWHEEL_INLINE Half narrow(Vec<float> value, BFloat16) {
  const Bits nan = bit_cast<Bits>(value != value);  // all ones, which is a NaN as well
  const Bits rounded = (rounding_bits(value) | nan) >> 16;
#if defined(__AVX2__)
  const __m256i words = bit_cast<__m256i>(rounded);
  return bit_cast<Half>(_mm_packus_epi32(_mm256_castsi256_si128(words),
                                         _mm256_extracti128_si256(words, 1)));
#else
  return __builtin_convertvector(rounded, Half);
#endif
}
#endif

#if defined(__AVX512F__)
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  return bit_cast<Vec<float>>(_mm512_cvtph_ps(bit_cast<__m256i>(half)));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  return bit_cast<Half>(_mm512_cvtps_ph(bit_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  return bit_cast<Vec<float>>(_mm256_cvtph_ps(bit_cast<__m128i>(half)));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  return bit_cast<Half>(_mm256_cvtps_ph(bit_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  return bit_cast<Vec<float>>(vcvt_f32_f16(bit_cast<float16x4_t>(half)));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  return bit_cast<Half>(vcvt_f16_f32(bit_cast<float32x4_t>(value)));
}
#else
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  const Bits bits = __builtin_convertvector(half, Bits);
  const Bits magnitude = (bits & 0x7fff) << 13;
  // 2^112 moves the exponent; denormals become normal on the way.
  const Bits scaled = bit_cast<Bits>(bit_cast<Vec<float>>(magnitude) * 0x1p112f);
  const Bits special = bit_cast<Bits>(magnitude >= 0x0f800000) & 0x7f800000;
  return bit_cast<Vec<float>>(scaled | special | ((bits & 0x8000) << 16));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  const Bits bits = bit_cast<Bits>(value);
  const Bits sign = (bits >> 16) & 0x8000;
  const Bits magnitude = bits & 0x7fffffff;
  // Too large for a half, infinite, or NaN.
  const Bits large = bit_cast<Bits>(magnitude >= 0x47800000);
  const Bits nan = bit_cast<Bits>(magnitude > 0x7f800000);
  // Adding 0.5 lines a denormal's bits up at the bottom of the mantissa, rounded to even.
  const Bits tiny = bit_cast<Bits>(magnitude < 0x38800000);
  const Bits denormal = bit_cast<Bits>(bit_cast<Vec<float>>(magnitude) + 0.5f) - 0x3f000000;
  const Bits normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Bits finite = (tiny & denormal) | (~tiny & normal);
  const Bits out = (large & ((nan & 0x7e00) | (~nan & 0x7c00))) | (~large & finite);
  return __builtin_convertvector(out | sign, Half);
}
#endif

// What `narrow` makes of a value, read back.
template <typename T>
FUSEWHEEL_INLINE Vec<float> narrowed(Vec<float> value, T) {
  return widen(narrow(value, T{}), T{});
}
FUSEWHEEL_INLINE Vec<float> narrowed(Vec<float> value, BFloat16) {
  const Vec<float> rounded = bit_cast<Vec<float>>(rounding_bits(value) & 0xffff0000);
  return value == value ? rounded : value;
}

template <typename T>
FUSEWHEEL_INLINE Vec<float> load(const T* from) {
  Half half;
  __builtin_memcpy(&half, from, sizeof(half));
  return widen(half, T{});
}
FUSEWHEEL_INLINE Vec<float> load(const float* from) {
  Vec<float> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
FUSEWHEEL_INLINE Vec<double> load(const double* from) {
  Vec<double> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
FUSEWHEEL_INLINE void store(T* to, Vec<float> value) {
  const Half half = narrow(value, T{});
  __builtin_memcpy(to, &half, sizeof(half));
}
FUSEWHEEL_INLINE void store(float* to, Vec<float> value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
FUSEWHEEL_INLINE void store(double* to, Vec<double> value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

#if defined(__AVX512F__)
FUSEWHEEL_INLINE Half load_half(const void* from, int64_t count) {
  const __mmask16 live = static_cast<__mmask16>((1u << count) - 1);
  return bit_cast<Half>(_mm256_maskz_loadu_epi16(live, from));
}
#elif defined(__AVX2__)
// Two words, of which the second is read so that it ends with the last number.
FUSEWHEEL_INLINE Half load_half(const void* from, int64_t count) {
  const char* bytes = static_cast<const char*>(from);
  unsigned long long words[2] = {};
  if (count >= 4) {
    __builtin_memcpy(&words[0], bytes, 8);
    __builtin_memcpy(&words[1], bytes + 2 * count - 8, 8);
    words[1] = words[1] >> 8 * (8 - count) >> 8 * (8 - count);
  } else {
    for (int64_t i = count; i-- > 0;) {
      uint16_t number;
      __builtin_memcpy(&number, bytes + 2 * i, 2);
      words[0] = words[0] << 16 | number;
    }
  }
  return bit_cast<Half>(_mm_set_epi64x(static_cast<long long>(words[1]),
                                       static_cast<long long>(words[0])));
}
#endif

// The first `count` lanes; the others read as zero and are not written.
template <typename T>
FUSEWHEEL_INLINE Vec<Accumulate<T>> load(const T* from, int64_t count) {
  if (count == kLanes<Accumulate<T>>) {
    return load(from);
  }
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 2) {
    return widen(load_half(from, count), T{});
  }
#endif
  T lanes[kLanes<Accumulate<T>>];
  for (int i = 0; i < kLanes<Accumulate<T>>; ++i) {
    lanes[i] = i < count ? from[i] : T{};
  }
  return load(lanes);
}
#if defined(__AVX512F__)
FUSEWHEEL_INLINE Vec<float> load(const float* from, int64_t count) {
  const __mmask16 live = static_cast<__mmask16>((1u << count) - 1);
  return bit_cast<Vec<float>>(_mm512_maskz_loadu_ps(live, from));
}
#elif defined(__AVX2__)
FUSEWHEEL_INLINE Vec<float> load(const float* from, int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i live = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  return bit_cast<Vec<float>>(_mm256_maskload_ps(from, live));
}
#endif
template <typename T>
FUSEWHEEL_INLINE void store(T* to, Vec<Accumulate<T>> value, int64_t count) {
  if (count == kLanes<Accumulate<T>>) {
    return store(to, value);
  }
  T lanes[kLanes<Accumulate<T>>];
  store(lanes, value);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = lanes[i];
  }
}

// Calls step(i, live) for every vector of a row; only the last may have fewer live lanes.
template <typename A, typename Step>
FUSEWHEEL_INLINE void for_each_vector(int64_t size, Step step) {
  int64_t i = 0;
  for (; i + kLanes<A> <= size; i += kLanes<A>) {
    step(i, kLanes<A>);
  }
  if (i < size) {
    step(i, size - i);
  }
}

// What a value becomes when it is stored as T and read back.
template <typename T>
FUSEWHEEL_INLINE Vec<Accumulate<T>> round_to(Vec<Accumulate<T>> value) {
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    return narrowed(value, T{});
  } else {
    return value;
  }
}

template <typename A>
FUSEWHEEL_INLINE A sum(Vec<A> value) {
  // Pairwise, so that the order does not depend on how the compiler unrolls.
  A lanes[kLanes<A>];
  store(lanes, value);
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

// The largest lane.
template <typename A>
FUSEWHEEL_INLINE A max(Vec<A> value) {
  using Integer = typename VecOf<A>::integer;
#pragma GCC unroll 4
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
    Integer other;
    for (int lane = 0; lane < kLanes<A>; ++lane) {
      other[lane] = lane ^ width;
    }
    const Vec<A> swapped = shuffle(value, other);
    value = swapped > value ? swapped : value;
  }
  return value[0];
}

// Calls body(T{}) with the element type that a dtype stands for.
template <typename Body>
FUSEWHEEL_INLINE void for_dtype(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::kFloat32: return body(float{});
    case Dtype::kBFloat16: return body(BFloat16{});
    case Dtype::kFloat16: return body(Float16{});
    case Dtype::kFloat64: return body(double{});
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
