// Elements of y that tensor cores left not finite, once more, by ordinary instructions. Products with
// codes have no scale yet (tensor_rows.h), so that large activations in bfloat16 make them infinite where
// results are not; and a code may be 0, which times an infinite activation is NaN, where the weight is not.
// Parts (tensor_floats.h) of an infinite number give NaN, and their sums may be twice as large.
#pragma once

#include "common/reduce.h"
#include "tensor_stages.h"

namespace fusewheel {
namespace {

// An element of y without the bias, from scaled codes, by a warp.
template <typename T, typename Stored>
__device__ float scaled_sum(const LinearArgs& args, const WeightReader<Stored>& weight, int64_t row,
                            int64_t column) {
  const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
  float sum = 0;
#pragma unroll 1
  for (int64_t vector = threadIdx.x; vector < weight.vectors(); vector += kWarp) {
    const uint4 bits = weight.whole_bits(column, vector);
    const auto scale = weight.template scale<float>(column, vector);
#pragma unroll
    for (int part = 0; part < Stored::kParts; ++part) {
      float w[Stored::kPart];
      float values[Stored::kPart];
      Stored::decode(bits, part, scale, w);
      load(x + vector * weight.kElements + part * Stored::kPart, values);
#pragma unroll
      for (int i = 0; i < Stored::kPart; ++i) {
        sum = multiply_add(values[i], w[i], sum);
      }
    }
  }
  return warp_sum(sum);
}

// `odd` is what write_sums has returned. All threads of a warp must call it.
template <typename T, typename Stored>
__device__ void write_scaled_sums(const LinearArgs& args, const WeightReader<Stored>& weight,
                                  int64_t row, int64_t column, unsigned odd) {
  static_assert(kTensorColumns == kWarp, "a lane for each column");
  if (warp_reduce<Larger>(odd) == 0) {
    return;
  }
#pragma unroll 1
  for (int lane = 0; lane < kWarp; ++lane) {
    unsigned left = __shfl_sync(0xffffffffu, odd, lane);
#pragma unroll 1
    for (int64_t own = row + threadIdx.y; left != 0; left /= 2, own += kTensorWarps) {
      if (left % 2 == 0) {
        continue;
      }
      const float sum = scaled_sum<T>(args, weight, own, column + lane);
      if (static_cast<int>(threadIdx.x) == lane) {
        const float bias =
            args.bias == nullptr ? 0 : load_one<float>(args.bias, args.bias_dtype, column + lane);
        narrow(sum + bias, static_cast<T*>(args.y)[own * args.weight.rows + column + lane]);
      }
    }
  }
}

}  // namespace
}  // namespace fusewheel
