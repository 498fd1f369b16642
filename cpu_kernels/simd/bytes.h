// Products of 8-bit integers, at the levels that have an instruction for them.
#pragma once

#include "vec.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

typedef int8_t Bytes __attribute__((vector_size(kBytes)));
typedef int16_t Shorts __attribute__((vector_size(kBytes)));
typedef int64_t Longs __attribute__((vector_size(kBytes)));

FUSEWHEEL_INLINE Bytes load_bytes(const void* from) {
  Bytes bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return bytes;
}

// The first `count` bytes, a multiple of 16; the others are zeros and are not read.
FUSEWHEEL_INLINE Bytes load_bytes(const void* from, int64_t count) {
  if (count >= kBytes) {
    return load_bytes(from);
  }
#if defined(__AVX512F__)
  const __mmask16 live = static_cast<__mmask16>((1u << (count / 4)) - 1);
  return bit_cast<Bytes>(_mm512_maskz_loadu_epi32(live, from));
#else
  return bit_cast<Bytes>(
      _mm256_zextsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from))));
#endif
}

// Sixteen bytes from each of kBytes / 16 places, `apart` pointers apart.
FUSEWHEEL_INLINE Bytes load_pieces(const uint8_t* const* from, int apart, int64_t offset) {
  const auto piece = [&](int i) FUSEWHEEL_INLINED {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i * apart] + offset));
  };
  const auto two = [&](int i) FUSEWHEEL_INLINED {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(piece(i)), piece(i + 1), 1);
  };
#if defined(__AVX512F__)
  return bit_cast<Bytes>(_mm512_inserti64x4(_mm512_castsi256_si512(two(0)), two(2), 1));
#else
  return bit_cast<Bytes>(two(0));
#endif
}

// Halves of each byte, 0 to 15.
FUSEWHEEL_INLINE Bytes low_half(Bytes pair) { return pair & 15; }
FUSEWHEEL_INLINE Bytes high_half(Bytes pair) {
  return bit_cast<Bytes>(bit_cast<Shorts>(pair) >> 4) & 15;
}

// Sums of two neighbouring products of a small number, 0 or more, with a signed byte. Numbers up to 63
// leave room to add two such sums.
FUSEWHEEL_INLINE Shorts multiply_pairs(Bytes small, Bytes other) {
#if defined(__AVX512F__)
  return bit_cast<Shorts>(_mm512_maddubs_epi16(bit_cast<__m512i>(small), bit_cast<__m512i>(other)));
#else
  return bit_cast<Shorts>(_mm256_maddubs_epi16(bit_cast<__m256i>(small), bit_cast<__m256i>(other)));
#endif
}

// Adds products of four codes that are not negative with four that may be, in each lane. Spelt out,
// because no level may presume the instruction.
FUSEWHEEL_INLINE void add_products(Integers& sums, Bytes positive, Bytes other) {
#if defined(__AVX512F__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(positive), "v"(other));
#else
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(positive), "x"(other));
#endif
}

// Adds products of neighbouring 16-bit numbers, two in each lane; likewise.
FUSEWHEEL_INLINE void add_word_products(Integers& sums, Integers first, Integers second) {
#if defined(__AVX512F__)
  asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(first), "v"(second));
#else
  asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(first), "x"(second));
#endif
}

// Loads of bytes that several products use happen once: the compiler would rather load them again than keep
// them in a register.
FUSEWHEEL_INLINE void keep_loaded(Bytes& bytes) { asm("" : "+v"(bytes)); }

// Sums of integers stay in the order in which they are written: the compiler's own, a tree, keeps
// more products waiting than there are registers.
FUSEWHEEL_INLINE void keep_order(Shorts& sum) { asm("" : "+v"(sum)); }

// Sums of two neighbouring products of 16-bit numbers.
FUSEWHEEL_INLINE Integers multiply_words(Shorts first, Shorts second) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_madd_epi16(bit_cast<__m512i>(first), bit_cast<__m512i>(second)));
#else
  return bit_cast<Integers>(_mm256_madd_epi16(bit_cast<__m256i>(first), bit_cast<__m256i>(second)));
#endif
}

// Sums of two neighbours, each times `factor`.
FUSEWHEEL_INLINE Integers add_pairs(Shorts value, int16_t factor = 1) {
  return multiply_words(value, factor - Shorts{});
}

// Takes lanes of two vectors in turn: those of the lower half of each 16 bytes, or of the upper half. One
// instruction for lanes of 4 or 8 bytes.
template <typename Lanes, bool upper, typename V>
FUSEWHEEL_INLINE V interleave(V a, V b) {
  constexpr int lanes = sizeof(Lanes) / sizeof(Lanes{}[0]);
  constexpr int piece = 16 / sizeof(Lanes{}[0]);
  Lanes order;
  for (int i = 0; i < lanes; ++i) {
    order[i] = i / piece * piece + i % piece / 2 + (upper ? piece / 2 : 0) + i % 2 * lanes;
  }
  return bit_cast<V>(shuffle(bit_cast<Lanes>(a), bit_cast<Lanes>(b), order));
}

// Of four vectors the sums of each 16 bytes, as far as two (Shorts) or one (Integers) in each 4 bytes:
// those of vector v lie in every fourth 4 bytes from v on.
template <typename V>
FUSEWHEEL_INLINE V fold_pieces(V a, V b, V c, V d) {
  const V first = interleave<Integers, false>(a, b) + interleave<Integers, true>(a, b);
  const V second = interleave<Integers, false>(c, d) + interleave<Integers, true>(c, d);
  return interleave<Longs, false>(first, second) + interleave<Longs, true>(first, second);
}

// Of each 16 bytes, the fourth i of vector v becomes the fourth v of vector i.
template <typename V>
FUSEWHEEL_INLINE void turn_pieces(V* vectors) {
  const V first = interleave<Integers, false>(vectors[0], vectors[1]);
  const V second = interleave<Integers, true>(vectors[0], vectors[1]);
  const V third = interleave<Integers, false>(vectors[2], vectors[3]);
  const V fourth = interleave<Integers, true>(vectors[2], vectors[3]);
  vectors[0] = interleave<Longs, false>(first, third);
  vectors[1] = interleave<Longs, true>(first, third);
  vectors[2] = interleave<Longs, false>(second, fourth);
  vectors[3] = interleave<Longs, true>(second, fourth);
}

// The same of one vector, whose sums lie in all of every four.
template <typename V>
FUSEWHEEL_INLINE V fold_pieces(V a) {
  Integers neighbours;
  Integers others;
  for (int i = 0; i < kLanes<float>; ++i) {
    neighbours[i] = i ^ 1;
    others[i] = i ^ 2;
  }
  const auto add = [](V x, Integers order) { return x + bit_cast<V>(shuffle(bit_cast<Integers>(x), order)); };
  return add(add(a, neighbours), others);
}

// The nearest whole numbers, halves to even. An instruction of its own: adding and taking off a large
// number, fused with a product before it, would round other ties.
FUSEWHEEL_INLINE Integers nearest(Vec<float> value) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_cvtps_epi32(bit_cast<__m512>(value)));
#else
  return bit_cast<Integers>(_mm256_cvtps_epi32(bit_cast<__m256>(value)));
#endif
}

// The lowest bytes of 32 numbers.
FUSEWHEEL_INLINE void store_bytes(int8_t* to, const Integers* numbers) {
#if defined(__AVX512F__)
  for (int i = 0; i < 2; ++i) {
    const __m128i bytes = _mm512_cvtepi32_epi8(bit_cast<__m512i>(numbers[i]));
    __builtin_memcpy(to + 16 * i, &bytes, sizeof(bytes));
  }
#else
  const auto pack = [&](int i) {
    return _mm256_packs_epi32(bit_cast<__m256i>(numbers[i]), bit_cast<__m256i>(numbers[i + 1]));
  };
  // Packing keeps to halves of 16 bytes: put the four-byte pieces in order afterwards.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(pack(0), pack(2)), order);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
#endif
}

// Four neighbouring bytes in every lane.
FUSEWHEEL_INLINE Bytes repeat_four(const int8_t* from) {
  int32_t four;
  __builtin_memcpy(&four, from, sizeof(four));
  return bit_cast<Bytes>(four - Integers{});
}

// Of the numbers of a vector, those of its quarter `v`, each in four neighbouring lanes.
FUSEWHEEL_INLINE Vec<float> repeat_by_four(Vec<float> from, int v) {
  constexpr int lanes = kLanes<float>;
  Integers lane;
  for (int i = 0; i < lanes; ++i) {
    lane[i] = v * (lanes / 4) + i / 4;
  }
  return shuffle(from, lane);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
