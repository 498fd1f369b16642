// What the kernels of rope are given: plain data, no torch.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

struct RopeTensor {
  const void* in;
  void* out;
  int64_t heads;
  int64_t in_strides[3];  // batch, head, position
  int64_t out_strides[3];
};

struct RopeArgs {
  RopeTensor tensors[2];  // queries, keys
  const void* cos;
  const void* sin;
  int64_t cos_strides[2];  // batch, row
  int64_t sin_strides[2];
  const int64_t* rows;     // which row of the tables a position has; null: the row of its number
  int64_t row_strides[2];  // batch, position
  int64_t row_count;
  int64_t batch;
  int64_t length;
  int64_t size;     // of a head
  int64_t rotated;  // the first so many elements of a head; the others are copied
  bool interleaved;
  bool transposed;
  Dtype dtype;
};

// Each kernel library has its own.
void rope_launch(const RopeArgs&, Stream);

}  // namespace fusewheel
