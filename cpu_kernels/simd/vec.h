// Reads and writes the vectors of lanes.h. Arithmetic on half types happens in float; only load and
// store know them.
#pragma once

#include <fusewheel/geometry.h>

#include <utility>

#include "half.h"

namespace fusewheel::FUSEWHEEL_ISA {

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

// a * b + c, rounded once; twice at the oldest level, whose processors cannot. Elsewhere the compiler is free
// to fuse a product with a sum, or not to: sums that would err too much otherwise are made of these.
#if defined(__AVX512F__)
FUSEWHEEL_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
FUSEWHEEL_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#elif defined(__FMA__)
FUSEWHEEL_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
FUSEWHEEL_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
#elif defined(__aarch64__)
FUSEWHEEL_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return bit_cast<Vec<float>>(vfmaq_f32(bit_cast<float32x4_t>(c), bit_cast<float32x4_t>(a),
                                        bit_cast<float32x4_t>(b)));
}
FUSEWHEEL_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return bit_cast<Vec<double>>(vfmaq_f64(bit_cast<float64x2_t>(c), bit_cast<float64x2_t>(a),
                                         bit_cast<float64x2_t>(b)));
}
#else
template <typename V>
FUSEWHEEL_INLINE V fma(V a, V b, V c) {
  return a * b + c;
}
#endif

template <typename V, int... lane>
FUSEWHEEL_INLINE auto lower_half(V value, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(value, value, lane...);
}
template <typename V, int... lane>
FUSEWHEEL_INLINE auto upper_half(V value, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(value, value, (lane + int{sizeof...(lane)})...);
}

// Combines all lanes, pairwise, so that the order does not depend on how the compiler unrolls.
template <typename A, typename V, typename Combine>
FUSEWHEEL_INLINE A fold(V value, Combine combine) {
  constexpr int lanes = sizeof(V) / sizeof(A);
  if constexpr (lanes == 2) {
    return combine(value[0], value[1]);
  } else if constexpr (lanes == 4) {
    return combine(combine(value[0], value[2]), combine(value[1], value[3]));
  } else {
    const std::make_integer_sequence<int, lanes / 2> half;
    return fold<A>(combine(lower_half(value, half), upper_half(value, half)), combine);
  }
}

template <typename A>
FUSEWHEEL_INLINE A sum(Vec<A> value) {
  return fold<A>(value, [](auto a, auto b) { return a + b; });
}

// The largest lane.
template <typename A>
FUSEWHEEL_INLINE A max(Vec<A> value) {
  return fold<A>(value, [](auto a, auto b) { return b > a ? b : a; });
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
