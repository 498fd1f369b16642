// Cross entropy of x * transposed weight + bias and a row's class, and the gradients of all three:
// products of ATen's around the row kernel of cross_entropy.

#include <fusewheel/loss/linear_cross_entropy_args.h>

#include "common/rows.h"

namespace fusewheel {
namespace {

constexpr int kSumThreads = 256;

// One number for each of `from`, or as many as a vector of it has. The sums of these are several vectors:
// of two neighbouring lanes, both access first the vectors of the even lane, then those of the odd one.
// Together these are whole pieces of 32 bytes.
template <typename T, int V>
__global__ void __launch_bounds__(kSumThreads) add_to_sum(const AddToSumArgs args) {
  using A = Accumulate<T>;
  constexpr int kParts = V > kLanes<A> ? V / kLanes<A> : 1;
  constexpr int kOwn = V / kParts;
  static_assert(kParts <= 2, "lanes share by twos");
  const auto* from = static_cast<const T*>(args.from);
  auto* sum = static_cast<A*>(args.sum);
  const int own = static_cast<int>(threadIdx.x) % kParts;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSumThreads * V;
  // Of a warp's lanes, some may have nothing: they take part in the exchange.
  const int64_t lane = static_cast<int64_t>(threadIdx.x) % kWarp * V;
#pragma unroll 1  // there is another time only where a grid cannot have so many blocks
  for (int64_t warp = (static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x) * V - lane;
       warp < args.count; warp += step) {
    A values[V] = {};
    if (warp + lane < args.count) {
      load(from + warp + lane, values);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      A shares[kOwn];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        shares[k] = values[k];
        if constexpr (kParts == 2) {
          const A given = __shfl_xor_sync(0xffffffffu, values[(1 - part) * kOwn + k], 1);
          shares[k] = own == part ? values[part * kOwn + k] : given;
        }
      }
      const int64_t at = warp + lane + (part - own) * V + own * kOwn;
      if (at < args.count) {
        if (!args.first) {
          A sums[kOwn];
          load(sum + at, sums);
#pragma unroll
          for (int k = 0; k < kOwn; ++k) {
            shares[k] += sums[k];
          }
        }
        store(sum + at, shares);
      }
    }
  }
}

}  // namespace

void add_to_sum_launch(const AddToSumArgs& args, Stream stream) {
  if (args.count == 0) {
    return;
  }
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.from, args.count, kLanes<T>) && is_aligned(args.sum);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      launch("linear_cross_entropy", add_to_sum<T, V>, blocks_for(args.count, kSumThreads * V),
             kSumThreads, 0, stream, args);
    });
  });
}

}  // namespace fusewheel
