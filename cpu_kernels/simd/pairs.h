// Vectors in pairs, for kernels to which the order of elements in a row does not matter. In
// bfloat16 a pair has the elements with even numbers and those with odd ones: a shift and a mask
// make it, half as many instructions as for two vectors in the order of memory. load_as brings
// floats from the order of memory into that of a pair, and store_as back.
#pragma once

#include "vec.h"

// After the parameters of a lambda that is called for every pair: a compiler might leave it outside
// if it is called in two places, and what it adds up would be in memory.
#define FUSEWHEEL_STEP __attribute__((always_inline))

namespace fusewheel::FUSEWHEEL_ISA {

template <typename A>
struct VecPair {
  Vec<A> even;  // in types other than bfloat16 the first half,
  Vec<A> odd;   // and the second
};

template <typename A>
constexpr int kPair = 2 * kLanes<A>;

#define FUSEWHEEL_PAIR_OPERATOR(op)                                     \
  template <typename A>                                                 \
  FUSEWHEEL_INLINE VecPair<A> operator op(VecPair<A> a, VecPair<A> b) { \
    return {a.even op b.even, a.odd op b.odd};                          \
  }                                                                     \
  template <typename A>                                                 \
  FUSEWHEEL_INLINE VecPair<A> operator op(VecPair<A> a, A b) {          \
    return {a.even op b, a.odd op b};                                   \
  }
FUSEWHEEL_PAIR_OPERATOR(+)
FUSEWHEEL_PAIR_OPERATOR(-)
FUSEWHEEL_PAIR_OPERATOR(*)
#undef FUSEWHEEL_PAIR_OPERATOR

template <typename T>
constexpr bool kInterleaved = false;
template <>
constexpr bool kInterleaved<BFloat16> = true;

template <typename T>
FUSEWHEEL_INLINE VecPair<Accumulate<T>> load_pair(const T* from) {
  return {load(from), load(from + kLanes<Accumulate<T>>)};
}
FUSEWHEEL_INLINE VecPair<float> load_pair(const BFloat16* from) {
  Bits both;
  __builtin_memcpy(&both, from, sizeof(both));
  return {bit_cast<Vec<float>>(both << 16), bit_cast<Vec<float>>(both & 0xffff0000)};
}

// The bits of a value rounded to their upper half, to even if two are as near; the lower half is
// left over. A NaN stays one if its own lower half is zero: that of a bfloat16 is, and so is what
// arithmetic makes of it.
FUSEWHEEL_INLINE Bits round_numbers(Vec<float> value) {
#if defined(__AVX512F__)
  const __m512i bits = bit_cast<__m512i>(value);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i sums = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return bit_cast<Bits>(_mm512_mask_add_epi32(sums, odd, sums, _mm512_set1_epi32(1)));
#else
  return rounding_bits(value);
#endif
}

template <typename T>
FUSEWHEEL_INLINE void store_pair(T* to, VecPair<Accumulate<T>> value) {
  store(to, value.even);
  store(to + kLanes<Accumulate<T>>, value.odd);
}
// For NaN, see round_numbers.
FUSEWHEEL_INLINE void store_pair(BFloat16* to, VecPair<float> value) {
  const Bits even = round_numbers(value.even) >> 16;
  const Bits odd = round_numbers(value.odd);
#if defined(__AVX512F__)
  const Bits both = bit_cast<Bits>(
      _mm512_mask_blend_epi16(0xaaaaaaaa, bit_cast<__m512i>(even), bit_cast<__m512i>(odd)));
#elif defined(__AVX2__)
  const Bits both =
      bit_cast<Bits>(_mm256_blend_epi16(bit_cast<__m256i>(even), bit_cast<__m256i>(odd), 0xaa));
#else
  const Bits both = even | (odd & 0xffff0000);
#endif
  __builtin_memcpy(to, &both, sizeof(both));
}

// The first `count` elements; the others read as zero and are not written.
template <typename T>
FUSEWHEEL_INLINE VecPair<Accumulate<T>> load_pair(const T* from, int64_t count) {
  constexpr int size = kPair<Accumulate<T>>;
  if (count == size) {
    return load_pair(from);
  }
  T elements[size] = {};
  for (int64_t i = 0; i < count; ++i) {
    elements[i] = from[i];
  }
  return load_pair(elements);
}
template <typename T>
FUSEWHEEL_INLINE void store_pair(T* to, VecPair<Accumulate<T>> value, int64_t count) {
  constexpr int size = kPair<Accumulate<T>>;
  if (count == size) {
    return store_pair(to, value);
  }
  T elements[size];
  store_pair(elements, value);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = elements[i];
  }
}

// Accumulators in the order in which load_pair has elements of T.
template <typename T, typename A = Accumulate<T>>
FUSEWHEEL_INLINE VecPair<A> load_as(const A* from, int64_t count) {
  const VecPair<A> both = load_pair(from, count);
  if constexpr (kInterleaved<T>) {
    Integers even;
    for (int i = 0; i < kLanes<A>; ++i) {
      even[i] = 2 * i;
    }
    return {shuffle(both.even, both.odd, even), shuffle(both.even, both.odd, even + 1)};
  } else {
    return both;
  }
}
template <typename T, typename A = Accumulate<T>>
FUSEWHEEL_INLINE void store_as(A* to, VecPair<A> value, int64_t count) {
  if constexpr (kInterleaved<T>) {
    Integers first;
    for (int i = 0; i < kLanes<A>; ++i) {
      first[i] = i / 2 + i % 2 * kLanes<A>;
    }
    const VecPair<A> in_order = {shuffle(value.even, value.odd, first),
                                 shuffle(value.even, value.odd, first + kLanes<A> / 2)};
    store_pair(to, in_order, count);
  } else {
    store_pair(to, value, count);
  }
}

// What a value becomes when it is stored as T and read back. For NaN, see round_numbers.
template <typename T>
FUSEWHEEL_INLINE VecPair<Accumulate<T>> round_to(VecPair<Accumulate<T>> value) {
  if constexpr (kInterleaved<T>) {
    return {bit_cast<Vec<float>>(round_numbers(value.even) & 0xffff0000),
            bit_cast<Vec<float>>(round_numbers(value.odd) & 0xffff0000)};
  } else {
    return {round_to<T>(value.even), round_to<T>(value.odd)};
  }
}

// Calls step(i, live) for every pair of a row; only the last may have fewer live elements.
template <typename A, typename Step>
FUSEWHEEL_INLINE void for_each_pair(int64_t size, Step step) {
  int64_t i = 0;
  for (; i + kPair<A> <= size; i += kPair<A>) {
    step(i, kPair<A>);
  }
  if (i < size) {
    step(i, size - i);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
