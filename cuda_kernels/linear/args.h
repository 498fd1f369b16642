// What the kernels of linear layers are given, and the functions that launch them.
#pragma once

#include <fusewheel/linear/linear_args.h>

namespace fusewheel {

constexpr int64_t kFewRows = 16;
// Kernels for few rows read so many neighbours of x, also behind its end, where zeros must be.
constexpr int64_t kRowRun = 16;

struct LinearArgs {
  LinearWeight weight;
  const void* x;
  int64_t rows;
  int64_t x_stride;
  Dtype x_dtype;
  const void* bias;  // or null
  Dtype bias_dtype;
  void* y;  // contiguous
  Dtype y_dtype;
};

// Numbers in bfloat16 whose sum a decoded weight is: together they have as many digits as float32.
constexpr int kWeightParts = 3;

// A part of a weight, to be decoded.
struct Panel {
  int64_t row;
  int64_t column;  // a multiple of kInt4Block
  int64_t rows;
  int64_t columns;
  void* to;     // [rows, columns], contiguous
  Dtype dtype;  // of `to`: float32 or bfloat16 or, but for blocks, float64
  // With bfloat16, the weight is the sum of kWeightParts such matrices: bytes from one to the next.
  int64_t step;
};

// Activations to be rounded.
struct RoundArgs {
  const void* x;  // no float64
  float* to;      // contiguous
  int64_t rows;
  int64_t stride;
  int64_t groups;  // of a row
  int64_t group_size;
  Dtype dtype;
};

// For up to kFewRows rows by_vectors, and no float64. Any number of rows may be tried on tensor cores;
// `tensor_launch` says whether it could.
void linear_launch(const LinearArgs&, Stream);
bool linear_tensor_launch(const LinearArgs&, Stream);

// The same for codes.
void linear_int8_launch(const LinearArgs&, Stream);
bool linear_int8_tensor_launch(const LinearArgs&, Stream);
void linear_int8_dequantise_launch(const LinearWeight&, const Panel&, Stream);

void linear_int4_launch(const LinearArgs&, Stream);
bool linear_int4_tensor_launch(const LinearArgs&, Stream);
void linear_int4_dequantise_launch(const LinearWeight&, const Panel&, Stream);

// For up to so many rows by_vectors, and no float64: reading the weight is most of the work. x is float32.
constexpr int64_t kFewBlockRows = 4;
void linear_blocks_launch(const LinearArgs&, Stream);
void linear_blocks_dequantise_launch(const LinearWeight&, const Panel&, Stream);

inline void dequantise_launch(const LinearWeight& weight, const Panel& panel, Stream stream) {
  switch (weight.kind) {
    case WeightKind::kInt8: return linear_int8_dequantise_launch(weight, panel, stream);
    case WeightKind::kInt4: return linear_int4_dequantise_launch(weight, panel, stream);
    default: return linear_blocks_dequantise_launch(weight, panel, stream);
  }
}

// For both kinds of codes.
void round_launch(const RoundArgs&, Stream);

}  // namespace fusewheel
