// Activations rounded to int8 against 4-bit codes: panels of codes and a register tile of integers.
//
// Within a block of 32 the products are summed as integers, so a scale costs one multiplication a
// block and column instead of one an element.
#pragma once

#include "simd/prefetch.h"
#include "simd/transpose.h"
#include "matmul.h"
#include "rounding.h"
#include "row_tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Steps of k in a panel, and rows of a in a tile.
constexpr int64_t kCodeDepth = 512;
constexpr int64_t kCodeBlocks = kCodeDepth / kInt4Block;
constexpr int kCodeRows = kBytes == 64 ? 6 : 3;
constexpr int kCodePanels = 2;
constexpr int kQuads = kInt4Block / 4;

// One column a lane: four codes of it a step, and the scale and the zero of every block.
struct CodePanel {
  Bytes codes[kCodeBlocks][kQuads];
  Vec<float> scales[kCodeBlocks];
  Vec<float> zeros[kCodeBlocks];
};

// Four vectors of four-byte pieces, turned within every 16 bytes.
FUSEWHEEL_INLINE void transpose_pieces(Integers* rows) {
  Integers low;
  Integers high;
  Integers low_pair;
  Integers high_pair;
  constexpr int lanes = kLanes<float>;
  for (int i = 0; i < lanes; ++i) {
    const int first = i & ~3;
    low[i] = first + ((i & 2) >> 1) + (i & 1) * lanes;
    high[i] = low[i] + 2;
    low_pair[i] = first + (i & 1) + (i & 2) / 2 * lanes;
    high_pair[i] = low_pair[i] + 2;
  }
  const Integers a = shuffle(rows[0], rows[1], low);
  const Integers b = shuffle(rows[0], rows[1], high);
  const Integers c = shuffle(rows[2], rows[3], low);
  const Integers d = shuffle(rows[2], rows[3], high);
  rows[0] = shuffle(a, c, low_pair);
  rows[1] = shuffle(a, c, high_pair);
  rows[2] = shuffle(b, d, low_pair);
  rows[3] = shuffle(b, d, high_pair);
}

// Numbers of kLanes rows, one a group, as one column a lane and one vector a block.
FUSEWHEEL_INLINE void pack_groups(Dtype dtype, const void* from, const int64_t* rows, int64_t groups,
                                  int64_t group_blocks, Vec<float>* to) {
  constexpr int lanes = kLanes<float>;
  float wide[lanes][kCodeBlocks + lanes];
  for (int lane = 0; lane < lanes; ++lane) {
    widen_all(dtype, from, rows[lane], groups, wide[lane]);
  }
  for (int64_t g = 0; g < groups; g += lanes) {
    Vec<float> square[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      square[lane] = load(wide[lane] + g);
    }
    transpose<float>(square);
    for (int i = 0; i < lanes && g + i < groups; ++i) {
      for (int64_t j = 0; j < group_blocks; ++j) {
        *to++ = square[i];
      }
    }
  }
}

// The codes that are packed after these, asked for a few at a time. They lie in rows of the weight that are far
// apart, and the hardware asks for none of them by itself.
class NextCodes {
 public:
  // After blocks [begin, begin + blocks) of some columns come the next ones, or the first of the next columns.
  NextCodes(const LinearWeight& weight, int64_t begin, int64_t blocks) : blocks_(blocks) {
    constexpr int64_t columns = kCodePanels * kLanes<float>;
    const int64_t all = weight.columns / kInt4Block;
    const int64_t next = begin + blocks < all ? begin + blocks : 0;
    const int64_t rows = next == 0 ? columns : 0;
    const int64_t count = all - next < kCodeBlocks ? all - next : kCodeBlocks;
    const int64_t group_blocks = weight.group_size / kInt4Block;
    bytes_ = rows * weight.stride + (next - begin) * kPiece;
    groups_ = rows * weight.groups + (next - begin) / group_blocks;
    // Rows may begin within a line.
    parts_ = (count * kPiece / kLineBytes + 1) * kParts;
  }

  // Before a block is packed of rows that begin at `codes`.
  FUSEWHEEL_INLINE void ask_for_codes(const uint8_t* const* codes, int64_t block) {
    for (; asked_ * blocks_ < (block + 1) * parts_; ++asked_) {
      const int64_t place = bytes_ + asked_ / kParts * kLineBytes;
      for (int64_t row = 0; row < kRows; ++row) {
        __builtin_prefetch(codes[asked_ % kParts * kRows + row] + place, 0, kSecondLevel);
      }
    }
  }

  // `places` are those of the rows' first groups.
  FUSEWHEEL_INLINE void ask_for_groups(const LinearWeight& weight, const int64_t* places) const {
    const int64_t size = bytes_of(weight.scale_dtype);
    for (int lane = 0; lane < kLanes<float>; ++lane) {
      const int64_t place = (places[lane] + groups_) * size;
      __builtin_prefetch(static_cast<const char*>(weight.scales) + place, 0, kSecondLevel);
      __builtin_prefetch(static_cast<const char*>(weight.zeros) + place, 0, kSecondLevel);
    }
  }

 private:
  static constexpr int64_t kPiece = kInt4Block / 2;
  // A line of so many rows is asked for at a time, in so many parts of all rows.
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kParts = kLanes<float> / kRows;
  int64_t blocks_;
  int64_t bytes_;   // from these codes to the next
  int64_t groups_;  // likewise
  int64_t parts_;
  int64_t asked_ = 0;
};

// Columns are rows of the weight; those past `live` repeat the last one. `begin` and `blocks` are
// whole groups.
inline void pack_codes(const LinearWeight& weight, int64_t column, int64_t live, int64_t begin,
                       int64_t blocks, CodePanel& panel) {
  constexpr int lanes = kLanes<float>;
  constexpr int piece = kInt4Block / 2;
  const int64_t group_blocks = weight.group_size / kInt4Block;
  const uint8_t* codes[lanes];
  int64_t scales[lanes];
  for (int lane = 0; lane < lanes; ++lane) {
    const int64_t row = column + (lane < live ? lane : live - 1);
    codes[lane] = static_cast<const uint8_t*>(weight.data) + row * weight.stride + begin * piece;
    scales[lane] = row * weight.groups + begin / group_blocks;
  }
  const int64_t groups = blocks / group_blocks;
  NextCodes next(weight, begin, blocks);
  next.ask_for_groups(weight, scales);
  pack_groups(weight.scale_dtype, weight.scales, scales, groups, group_blocks, panel.scales);
  pack_groups(weight.scale_dtype, weight.zeros, scales, groups, group_blocks, panel.zeros);
  for (int64_t i = 0; i < blocks; ++i) {
    next.ask_for_codes(codes, i);
    Integers pieces[4];
    for (int j = 0; j < 4; ++j) {
      pieces[j] = bit_cast<Integers>(load_pieces(codes + j, 4, i * piece));
    }
    transpose_pieces(pieces);
    for (int j = 0; j < 4; ++j) {
      panel.codes[i][j] = low_half(bit_cast<Bytes>(pieces[j]));
      panel.codes[i][4 + j] = high_half(bit_cast<Bytes>(pieces[j]));
    }
  }
}

// Sums of a block's products in 16 bits: at most 8 * 2 * 15 * 127 = 30480.
struct ShortSums {
  Shorts sums = {};

  FUSEWHEEL_INLINE void add(Bytes codes, Bytes factor) {
    sums += multiply_pairs(codes, factor);
    keep_order(sums);
  }
  FUSEWHEEL_INLINE Integers total() const { return add_pairs(sums); }
};

// In 32 bits, in one instruction (VNNI).
struct LongSums {
  Integers sums = {};

  FUSEWHEEL_INLINE void add(Bytes codes, Bytes factor) { add_products(sums, codes, factor); }
  FUSEWHEEL_INLINE Integers total() const { return sums; }
};

// `rows` rows of a from `row` times two panels whose first block is `begin`.
template <typename Sums, int rows>
__attribute__((noinline)) void code_tile(const RoundedRows& a, int64_t row, int64_t begin,
                                         int64_t blocks, const CodePanel* panels, float* c,
                                         int64_t c_stride, bool accumulate) {
  Vec<float> sums[rows][kCodePanels];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kCodePanels; ++p) {
      sums[r][p] = accumulate ? load(c + r * c_stride + p * kLanes<float>) : Vec<float>{};
    }
  }
  const int64_t stride = a.stride;
  const int8_t* codes = a.codes + row * stride + begin * kInt4Block;
  const float* steps = a.steps + row * a.groups + begin;
  const float* totals = a.sums + row * a.groups + begin;
  for (int64_t i = 0; i < blocks; ++i, codes += kInt4Block) {
    Sums products[rows][kCodePanels];
#pragma GCC unroll 8
    for (int q = 0; q < kQuads; ++q) {
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const Bytes factor = repeat_four(codes + r * stride + 4 * q);
#pragma GCC unroll 2
        for (int p = 0; p < kCodePanels; ++p) {
          products[r][p].add(panels[p].codes[i][q], factor);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const Vec<float> step = splat(steps[r * a.groups + i]);
      const Vec<float> total = splat(totals[r * a.groups + i]);
#pragma GCC unroll 2
      for (int p = 0; p < kCodePanels; ++p) {
        sums[r][p] += from_codes(products[r][p].total()) * panels[p].scales[i] * step;
        sums[r][p] += panels[p].zeros[i] * total;
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kCodePanels; ++p) {
      store(c + r * c_stride + p * kLanes<float>, sums[r][p]);
    }
  }
}

// All rows of a block of y.
template <typename Sums>
void code_rows(const RoundedRows& a, int64_t row, int64_t rows, int64_t begin, int64_t blocks,
               const CodePanel* panels, float* c, int64_t c_stride, bool accumulate) {
  by_tiles<kCodeRows>(rows, [&](auto together, int64_t i) {
    code_tile<Sums, decltype(together)::value>(a, row + i, begin, blocks, panels, c + i * c_stride,
                                               c_stride, accumulate);
  });
}

// Columns [column, column + columns) of y for rows [row, row + rows) of a; `sums` has `stride`
// numbers a row. `multiply` is code_rows, by one instruction or another.
template <typename Multiply>
void integer_block(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column,
                   int64_t columns, CodePanel* panels, float* sums, int64_t stride,
                   Multiply multiply) {
  constexpr int lanes = kLanes<float>;
  const RoundedRows& a = args.rounded;
  for (int64_t j = 0; j < columns; j += kCodePanels * lanes) {
    for (int64_t begin = 0; begin < a.groups; begin += kCodeBlocks) {
      const int64_t blocks = a.groups - begin < kCodeBlocks ? a.groups - begin : kCodeBlocks;
      for (int p = 0; p < kCodePanels; ++p) {
        const int64_t first = j + p * lanes < columns ? j + p * lanes : columns - 1;
        pack_codes(args.weight, column + first, columns - first, begin, blocks, panels[p]);
      }
      multiply(a, row, rows, begin, blocks, panels, sums + j, stride, begin > 0);
    }
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
