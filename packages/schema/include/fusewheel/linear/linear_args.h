// What the kernels of the linear layers are given: plain data, no torch.
//
// A weight is a matrix [out features, in features] of floating numbers or of codes with scales:
//   int8   w[n][k] = code[n][k] * scale[n][k / group], int8 codes
//   int4   w[n][k] = code[n][k] * scale[n][k / group] + zero[n][k / group], codes 0 to 15, two a byte:
//          byte j of each 32 elements holds element j in its low half and element 16 + j in its high
//          half (the order of GGUF's 4-bit blocks)
//   blocks w[n][k] as block_formats.h says, its scales beside its codes
#pragma once

#include <fusewheel/geometry.h>
#include <fusewheel/linear/block_formats.h>

namespace fusewheel {

enum class WeightKind : int32_t { kFloating, kInt8, kInt4, kBlocks };

// Codes of one byte of 4-bit weights lie half of this apart.
constexpr int64_t kInt4Block = 32;

struct LinearWeight {
  WeightKind kind;
  Dtype dtype;  // of a floating weight
  const void* data;
  int64_t rows;     // out features
  int64_t columns;  // in features
  int64_t stride;   // from row to row, in elements as stored (bytes for codes)
  Dtype scale_dtype;
  const void* scales;  // [rows, groups], contiguous
  const void* zeros;   // likewise, int4 only
  int64_t groups;
  int64_t group_size;
  BlockFormat blocks = {};  // of a weight in blocks
};

}  // namespace fusewheel
