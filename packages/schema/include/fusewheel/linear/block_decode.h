// What the bytes of a block mean, for the kernels of every device. Who includes this file defines
// FUSEWHEEL_DECODER, the specifiers of its functions: they must leave no function behind that another
// level of instructions could call.
#pragma once

#include <fusewheel/linear/block_formats.h>

#ifndef FUSEWHEEL_DECODER
#error "define FUSEWHEEL_DECODER before this file is included"
#endif

namespace fusewheel {

FUSEWHEEL_DECODER float float_of_bits(uint32_t bits) {
  float number;
  __builtin_memcpy(&number, &bits, sizeof(number));
  return number;
}

FUSEWHEEL_DECODER float float_at(const uint8_t* at) {
  float number;
  __builtin_memcpy(&number, at, sizeof(number));
  return number;
}

// A float16 number. No denormal float32 is used on the way: a process may have them read as zeros.
FUSEWHEEL_DECODER float half_at(const uint8_t* at) {
  const uint32_t bits = at[0] | static_cast<uint32_t>(at[1]) << 8;
  const uint32_t magnitude = (bits & 0x7fff) << 13;
  const uint32_t sign = (bits & 0x8000) << 16;
  if (magnitude >= 0x0f800000) {
    return float_of_bits(magnitude | 0x7f800000 | sign);  // infinite or NaN
  }
  if (magnitude < 0x00800000) {
    const float denormal = float_of_bits(magnitude + 0x38800000) - 0x1p-14f;
    return sign != 0 ? -denormal : denormal;
  }
  return float_of_bits((magnitude + 0x38000000) | sign);
}

// 2^(code - 128).
FUSEWHEEL_DECODER float power_at(const uint8_t* at) {
  return float_of_bits(*at < 2 ? uint32_t{0x00200000} << *at : (uint32_t{*at} - 1) << 23);
}

// A number of float8_e4m3fn: 4 bits of exponent, 3 of mantissa, no infinities.
FUSEWHEEL_DECODER float float8_of(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float normal = float_of_bits((magnitude << 20) + (uint32_t{120} << 23));
  const float small = static_cast<float>(static_cast<int>(magnitude)) * 0x1p-9f;
  const float number = magnitude < 8 ? small : magnitude == 0x7f ? float_of_bits(0x7fc00000) : normal;
  return (code & 0x80) != 0 ? -number : number;
}

// The scale and the minimum of sub-block `s` of Q4_K and Q5_K: 6 bits each, in 12 bytes.
struct ScaleAndMinimum {
  int scale;
  int minimum;
};
FUSEWHEEL_DECODER ScaleAndMinimum scale_and_minimum(const uint8_t* b, int s) {
  if (s < 4) {
    return {b[s] & 63, b[s + 4] & 63};
  }
  return {(b[s + 4] & 15) | (b[s - 4] >> 6) << 4, (b[s + 4] >> 4) | (b[s] >> 6) << 4};
}

// The scale of sub-block `s` of Q3_K, from -32 to 31: 6 bits in 12 bytes.
FUSEWHEEL_DECODER int scale_of_q3(const uint8_t* b, int s) {
  const int low = (s < 8 ? b[s] : b[s - 8] >> 4) & 15;
  return (low | (b[8 + s % 4] >> (2 * (s / 4)) & 3) << 4) - 32;
}

// The code of element `first` + `i` of 32: the low half of a byte, or the high half of the one 16 before.
template <int N>
FUSEWHEEL_DECODER int nibble(const uint8_t* codes, int first, int i) {
  if constexpr (N > 16) {
    return first + i < 16 ? codes[first + i] & 15 : codes[first + i - 16] >> 4;
  } else {
    return codes[first % 16 + i] >> (first / 16 * 4) & 15;
  }
}

// The numbers that 4-bit codes stand for.
template <BlockKind kind>
struct BlockTable;

template <>
struct BlockTable<BlockKind::kIQ4_NL> {
  static FUSEWHEEL_DECODER float at(int code) {
    constexpr float table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
    return table[code];
  }
};

template <>
struct BlockTable<BlockKind::kMXFP4> {
  static FUSEWHEEL_DECODER float at(int code) {
    constexpr float table[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                 0, -1, -2, -3, -4, -6, -8, -12};
    return table[code];
  }
};

template <>
struct BlockTable<BlockKind::kNF4> {
  static FUSEWHEEL_DECODER float at(int code) {
    constexpr float table[16] = {
        -1.0f,         -0.6961928009986877f,  -0.5250730514526367f, -0.39491748809814453f,
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
        0.07958029955625534f,  0.16093020141124725f,  0.24611230194568634f, 0.33791524171829224f,
        0.44070982933044434f,  0.5626170039176941f,   0.7229568362236023f,  1.0f};
    return table[code];
  }
};

template <>
struct BlockTable<BlockKind::kFP4> {
  static FUSEWHEEL_DECODER float at(int code) {
    constexpr float table[16] = {0.0f,        1.0f / 192,  2.0f / 3,  1.0f,
                                 1.0f / 3,    1.0f / 2,    1.0f / 6,  1.0f / 4,
                                 0.0f,        -1.0f / 192, -2.0f / 3, -1.0f,
                                 -1.0f / 3,   -1.0f / 2,   -1.0f / 6, -1.0f / 4};
    return table[code];
  }
};

template <BlockKind kind>
struct BlockDecoder {
  static constexpr BlockKind kKind = kind;
  static constexpr int kWeights = block_format(kind).weights;
  static constexpr int kBytes = block_format(kind).bytes;

  // Decodes a part of a block: kBlockPart weights.
  static FUSEWHEEL_DECODER void decode(const uint8_t* block, int part, float* to) {
    decode_some<kBlockPart>(block, part, 0, to);
  }

  // N weights of a part from its weight `first` on: the whole part, or some within one half of it.
  template <int N>
  static FUSEWHEEL_DECODER void decode_some(const uint8_t* block, int part, int first, float* to) {
    constexpr int half = kBlockPart / 2;
    constexpr int run = N < half ? N : half;  // weights that have one scale in every kind
    if constexpr (kind == BlockKind::kQ4_0) {
      const float d = half_at(block);
      for (int i = 0; i < N; ++i) {
        to[i] = d * static_cast<float>(nibble<N>(block + 2, first, i) - 8);
      }
    } else if constexpr (kind == BlockKind::kQ4_1) {
      const float d = half_at(block);
      const float m = half_at(block + 2);
      for (int i = 0; i < N; ++i) {
        to[i] = d * static_cast<float>(nibble<N>(block + 4, first, i)) + m;
      }
    } else if constexpr (kind == BlockKind::kQ5_0 || kind == BlockKind::kQ5_1) {
      constexpr bool has_minimum = kind == BlockKind::kQ5_1;
      const float d = half_at(block);
      [[maybe_unused]] const float m = has_minimum ? half_at(block + 2) : 0.0f;
      const uint8_t* bits = block + (has_minimum ? 4 : 2);
      for (int i = 0; i < N; ++i) {
        const int at = first + i;
        const int code = nibble<N>(bits + 4, first, i) | (bits[at / 8] >> (at % 8) & 1) << 4;
        if constexpr (has_minimum) {
          to[i] = d * static_cast<float>(code) + m;
        } else {
          to[i] = d * static_cast<float>(code - 16);
        }
      }
    } else if constexpr (kind == BlockKind::kQ8_0) {
      const float d = half_at(block);
      for (int i = 0; i < N; ++i) {
        to[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + first + i]));
      }
    } else if constexpr (kind == BlockKind::kQ2_K) {
      const float d = half_at(block + 80);
      const float minimum = half_at(block + 82);
      const uint8_t* codes = block + 16 + part / 4 * 32;
      const int shift = 2 * (part % 4);
      for (int k = 0; k < N / run; ++k) {
        const int s = N < half ? first / half : k;
        const int both = block[2 * part + s];
        const float scale = d * static_cast<float>(both & 15);
        const float offset = minimum * static_cast<float>(both >> 4);
        for (int i = k * run; i < (k + 1) * run; ++i) {
          to[i] = scale * static_cast<float>(codes[first + i] >> shift & 3) - offset;
        }
      }
    } else if constexpr (kind == BlockKind::kQ3_K) {
      const float d = half_at(block + 108);
      const uint8_t* codes = block + 32 + part / 4 * 32;
      const int shift = 2 * (part % 4);
      for (int k = 0; k < N / run; ++k) {
        const int s = N < half ? first / half : k;
        const float scale = d * static_cast<float>(scale_of_q3(block + 96, 2 * part + s));
        for (int i = k * run; i < (k + 1) * run; ++i) {
          const int high = block[first + i] >> part & 1;  // if it is set, nothing is taken off
          to[i] = scale * static_cast<float>((codes[first + i] >> shift & 3) - 4 + 4 * high);
        }
      }
    } else if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
      constexpr bool has_fifth = kind == BlockKind::kQ5_K;
      const ScaleAndMinimum own = scale_and_minimum(block + 4, part);
      const float scale = half_at(block) * static_cast<float>(own.scale);
      const float offset = half_at(block + 2) * static_cast<float>(own.minimum);
      const uint8_t* codes = block + (has_fifth ? 48 : 16) + part / 2 * 32;
      const int shift = 4 * (part % 2);
      for (int i = 0; i < N; ++i) {
        int code = codes[first + i] >> shift & 15;
        if constexpr (has_fifth) {
          code |= (block[16 + first + i] >> part & 1) << 4;
        }
        to[i] = scale * static_cast<float>(code) - offset;
      }
    } else if constexpr (kind == BlockKind::kQ6_K) {
      const float d = half_at(block + 208);
      const uint8_t* low = block + part / 4 * 64 + part % 2 * 32;
      const uint8_t* high = block + 128 + part / 4 * 32;
      const int low_shift = part % 4 / 2 * 4;
      const int high_shift = 2 * (part % 4);
      for (int k = 0; k < N / run; ++k) {
        const int s = N < half ? first / half : k;
        const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + 2 * part + s]));
        for (int i = k * run; i < (k + 1) * run; ++i) {
          const int at = first + i;
          const int code = (low[at] >> low_shift & 15) | (high[at] >> high_shift & 3) << 4;
          to[i] = scale * static_cast<float>(code - 32);
        }
      }
    } else if constexpr (kind == BlockKind::kIQ4_NL || kind == BlockKind::kMXFP4) {
      constexpr bool is_power = kind == BlockKind::kMXFP4;
      const float d = is_power ? power_at(block) : half_at(block);
      const uint8_t* codes = block + (is_power ? 1 : 2);
      for (int i = 0; i < N; ++i) {
        to[i] = d * BlockTable<kind>::at(nibble<N>(codes, first, i));
      }
    } else if constexpr (kind == BlockKind::kNF4 || kind == BlockKind::kFP4) {
      const float scale = float_at(block);
      for (int i = 0; i < N; ++i) {
        to[i] = scale * BlockTable<kind>::at(nibble<N>(block + 4 + part * half, first, i));
      }
    } else {
      static_assert(kind == BlockKind::kFP8, "every kind has a decoder");
      const float scale = float_at(block);
      for (int i = 0; i < N; ++i) {
        to[i] = scale * float8_of(block[4 + part * kBlockPart + first + i]);
      }
    }
  }
};

// Calls function(BlockDecoder<kind>{}), on the host.
template <typename Function>
inline __attribute__((always_inline)) void for_block_kind(BlockKind kind, Function function) {
  switch (kind) {
    case BlockKind::kQ4_0: return function(BlockDecoder<BlockKind::kQ4_0>{});
    case BlockKind::kQ4_1: return function(BlockDecoder<BlockKind::kQ4_1>{});
    case BlockKind::kQ5_0: return function(BlockDecoder<BlockKind::kQ5_0>{});
    case BlockKind::kQ5_1: return function(BlockDecoder<BlockKind::kQ5_1>{});
    case BlockKind::kQ8_0: return function(BlockDecoder<BlockKind::kQ8_0>{});
    case BlockKind::kQ2_K: return function(BlockDecoder<BlockKind::kQ2_K>{});
    case BlockKind::kQ3_K: return function(BlockDecoder<BlockKind::kQ3_K>{});
    case BlockKind::kQ4_K: return function(BlockDecoder<BlockKind::kQ4_K>{});
    case BlockKind::kQ5_K: return function(BlockDecoder<BlockKind::kQ5_K>{});
    case BlockKind::kQ6_K: return function(BlockDecoder<BlockKind::kQ6_K>{});
    case BlockKind::kIQ4_NL: return function(BlockDecoder<BlockKind::kIQ4_NL>{});
    case BlockKind::kMXFP4: return function(BlockDecoder<BlockKind::kMXFP4>{});
    case BlockKind::kNF4: return function(BlockDecoder<BlockKind::kNF4>{});
    case BlockKind::kFP4: return function(BlockDecoder<BlockKind::kFP4>{});
    case BlockKind::kFP8: return function(BlockDecoder<BlockKind::kFP8>{});
  }
}

}  // namespace fusewheel
