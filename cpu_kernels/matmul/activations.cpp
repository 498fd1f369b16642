// Activations widened or rounded before they meet a weight.

#include "activations.h"

#include "rounding.h"
#include "tile.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

template <typename A>
void widen_as(const WidenArgs& args, int64_t begin, int64_t end) {
  A* to = static_cast<A*>(args.to);
  if (!args.transposed) {
    for (int64_t row = begin; row < end; ++row) {
      widen_all(args.dtype, args.from, row * args.stride, args.columns, to + row * args.to_stride);
    }
    return;
  }
  // Columns [begin, end), in squares, so that both sides use whole cache lines.
  constexpr int64_t side = 16;
  A square[side][side];
  for (int64_t column = begin; column < end; column += side) {
    const int64_t width = end - column < side ? end - column : side;
    for (int64_t row = 0; row < args.rows; row += side) {
      const int64_t height = args.rows - row < side ? args.rows - row : side;
      for (int64_t i = 0; i < height; ++i) {
        widen_all(args.dtype, args.from, (row + i) * args.stride + column, width, square[i]);
      }
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < height; ++i) {
          to[(column + j) * args.to_stride + row + i] = square[i][j];
        }
      }
    }
  }
}

template <typename A>
void write_tiles_as(const TilesArgs& args, int64_t begin, int64_t end) {
  static_assert(kWholeTiles % kTileRows == 0);
  const bool in_place =
      args.dtype == (sizeof(A) == sizeof(double) ? Dtype::kFloat64 : Dtype::kFloat32);
  for (int64_t strip = begin; strip < end; ++strip) {
    const int64_t column = strip * kTilesStrip;
    const int64_t left = args.columns - column;
    const int64_t live = left < kTilesStrip ? left : kTilesStrip;
    // A few rows at a time: numbers that have just been stored are slow to load as other vectors.
    constexpr int64_t together = 8;
    A widened[together][kTilesStrip] = {};
    const A* numbers[together];
    A* to = static_cast<A*>(args.to) + column * args.to_stride;
    for (int64_t row = 0; row < args.rows; row += together, to += together * kTileRows) {
      const int64_t rows = args.rows - row < together ? args.rows - row : together;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t begin = (row + r) * args.stride + column;
        if (in_place && live == kTilesStrip) {
          numbers[r] = static_cast<const A*>(args.from) + begin;
        } else {
          widen_all(args.dtype, args.from, begin, live, widened[r]);
          numbers[r] = widened[r];
        }
      }
      for (int64_t i = 0; i < live; i += kTileRows) {
        for (int64_t r = 0; r < rows; ++r) {
          __builtin_memcpy(to + i * args.to_stride + r * kTileRows, numbers[r] + i,
                           kTileRows * sizeof(A));
        }
      }
    }
  }
}

}  // namespace

void write_tiles(const TilesArgs& args, int64_t begin, int64_t end) {
  if (args.wide) {
    write_tiles_as<double>(args, begin, end);
  } else {
    write_tiles_as<float>(args, begin, end);
  }
}

void widen_rows(const WidenArgs& args, int64_t begin, int64_t end) {
  if (args.wide) {
    widen_as<double>(args, begin, end);
  } else {
    widen_as<float>(args, begin, end);
  }
}

// Rows [begin, end) of the result, in squares, so that both sides use whole cache lines.
void turn_rows(const TurnArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t side = 32;
  const auto* from = static_cast<const uint16_t*>(args.from);
  auto* to = static_cast<uint16_t*>(args.to);
  for (int64_t column = begin; column < end; column += side) {
    const int64_t width = end - column < side ? end - column : side;
    for (int64_t row = 0; row < args.to_columns; row += side) {
      const int64_t whole = args.to_columns - row < side ? args.to_columns - row : side;
      const int64_t left = args.rows - row < 0 ? 0 : args.rows - row;
      const int64_t height = left < whole ? left : whole;
      for (int64_t j = 0; j < width; ++j) {
        uint16_t* line = to + (column + j) * args.to_stride + row;
        for (int64_t i = 0; i < height; ++i) {
          line[i] = from[(row + i) * args.stride + column + j];
        }
        for (int64_t i = height; i < whole; ++i) {
          line[i] = uint16_t{};
        }
      }
    }
  }
}

void round_rows(const RoundRowsArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t k = 0; k < args.columns; k += args.group_size) {
      const float* from = args.from + row * args.stride + k;
      float* to = args.to + row * args.columns + k;
      const int64_t size = args.group_size;
      Vec<float> largest = {};
      for_each_vector<float>(size, [&](int64_t i, int64_t live) {
        const Vec<float> value = load(from + i, live);
        const Vec<float> magnitude = value < 0 ? -value : value;
        largest = magnitude > largest ? magnitude : largest;
      });
      float amax = 0;
      for (int lane = 0; lane < kLanes<float>; ++lane) {
        amax = largest[lane] > amax ? largest[lane] : amax;
      }
      // A group of zeros, or of numbers so small that they vanish beside any weight.
      const float inverse = 127 / amax > 3.4028235e38f ? 0 : 127 / amax;
      const float step = amax / 127;
      for_each_vector<float>(size, [&](int64_t i, int64_t live) {
        // Not by adding a large number: fused with the product, that would round other ties.
        Vec<float> code = load(from + i, live) * inverse;
        for (int lane = 0; lane < kLanes<float>; ++lane) {
          code[lane] = __builtin_nearbyintf(code[lane]);
        }
        store(to + i, code * step, live);
      });
    }
  }
}

#if defined(__AVX2__)

namespace {

// A row of a as codes: step = max |a| / 127 of every block.
void round_codes(const float* a, int64_t blocks, int8_t* codes, float* steps, float* sums) {
  constexpr int lanes = kLanes<float>;
  constexpr int vectors = kInt4Block / lanes;
  for (int64_t block = 0; block < blocks; ++block, a += kInt4Block, codes += kInt4Block) {
    const Rounding rounding = round_block(measure_block(a), 127);
    steps[block] = rounding.step;
    Integers whole[vectors] = {};
    Integers total = {};
    for (int i = 0; i < vectors && rounding.inverse > 0; ++i) {
      whole[i] = nearest(load(a + i * lanes) * rounding.inverse);
      total += whole[i];
    }
    store_bytes(codes, whole);
    sums[block] = sum<float>(__builtin_convertvector(total, Vec<float>)) * rounding.step;
  }
}

// 32 codes as words, of every four the second and the third exchanged.
void store_words(int16_t* to, const Integers* numbers) {
  alignas(kBytes) int8_t codes[kInt4Block];
  store_bytes(codes, numbers);
  for (int i = 0; i < kInt4Block; i += 16) {
    constexpr int exchanged = 0xd8;
    const __m256i words =
        _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256i ordered =
        _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, exchanged), exchanged);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), ordered);
  }
}

// A group as codes, padded with zeros; returns their sum.
template <typename Code>
int32_t round_group(const float* from, int64_t size, int64_t padded, Code* codes, float& step) {
  constexpr int lanes = kLanes<float>;
  constexpr int vectors = kInt4Block / lanes;
  const Rounding rounding = round_block(measure_group(from, size), 127);
  step = rounding.step;
  const int64_t rounded = rounding.inverse > 0 ? size : 0;
  Integers total = {};
  for (int64_t i = 0; i < padded; i += kInt4Block) {
    Integers whole[vectors];
    for (int v = 0; v < vectors; ++v) {
      const int64_t left = rounded - i - v * lanes;
      const int64_t live = left < 0 ? 0 : left < lanes ? left : lanes;
      whole[v] = live == 0 ? Integers{} : nearest(load(from + i + v * lanes, live) * rounding.inverse);
      total += whole[v];
    }
    if constexpr (sizeof(Code) == 1) {
      store_bytes(codes + i, whole);
    } else {
      store_words(codes + i, whole);
    }
  }
  int32_t sum = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    sum += total[lane];
  }
  return sum;
}

}  // namespace

bool has_integer_products(const LinearWeight& weight, int64_t rows) {
  // The sums of a larger group could leave 32 bits.
  constexpr int64_t largest = int64_t{1} << 16;
  // Fewer rows do not pay for packing, and smaller groups not for their sums, unless there is VNNI.
  constexpr int64_t kFewestWordRows = 4;
  constexpr int64_t kSmallestWordGroup = 64;
  const bool words_pay = kBytes == 32 && rows >= kFewestWordRows &&
                         (weight.groups == 1 || weight.group_size >= kSmallestWordGroup);
  return weight.kind == WeightKind::kInt4 ||
         (weight.kind == WeightKind::kInt8 && (choices().vnni || words_pay) &&
          weight.group_size <= largest);
}

void code_blocks(const CodeArgs& args, int64_t begin, int64_t end) {
  const int64_t blocks = args.rows.groups;
  for (int64_t row = begin; row < end; ++row) {
    round_codes(args.from + row * args.stride, blocks, args.codes + row * args.rows.stride,
                args.steps + row * blocks, args.sums + row * blocks);
  }
}

void code_groups(const CodeArgs& args, int64_t begin, int64_t end) {
  const RoundedRows& rows = args.rows;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < rows.groups; ++group) {
      const int64_t place = row * rows.groups + group;
      const int64_t first = row * rows.stride + group * rows.padded;
      const auto round = [&](auto* codes) {
        return round_group(args.from + row * args.stride + group * args.group_size, args.group_size,
                           rows.padded, codes + first, args.steps[place]);
      };
      args.offsets[place] =
          128 * (rows.are_words ? round(reinterpret_cast<int16_t*>(args.codes)) : round(args.codes));
    }
  }
}

#else

bool has_integer_products(const LinearWeight&, int64_t) { return false; }

void code_blocks(const CodeArgs&, int64_t, int64_t) {}

void code_groups(const CodeArgs&, int64_t, int64_t) {}

#endif

}  // namespace fusewheel::FUSEWHEEL_ISA
