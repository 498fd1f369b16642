// Activations rounded to 8 bits: step = max |x| / 127 of a group, code = round(x * (127 / max |x|)),
// halves to even. They become the float32 numbers that the codes stand for.

#include <cfloat>

#include "args.h"
#include "common/divide.h"
#include "common/rows.h"

namespace fusewheel {
namespace {

// As many elements as a thread writes at once. If these are fewer than 128 bits of x, neighbouring
// threads read the same 128 bits.
template <typename T, int V>
__device__ void read_piece(const T* from, int64_t piece, float (&to)[V]) {
  if constexpr (V == 1) {
    to[0] = widen(from[piece]);
  } else {
    constexpr int kSharing = kLanes<T> / V;
    float all[kLanes<T>];
    load(from + piece / kSharing * kLanes<T>, all);
    const bool second = kSharing > 1 && piece % kSharing != 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      to[i] = second ? all[kLanes<T> - V + i] : all[i];
    }
  }
}

template <int V>
__device__ float largest(float most, const float (&of)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    most = Larger()(most, fabsf(of[i]));
  }
  return most;
}

template <int V>
__device__ void write_rounded(float (&values)[V], float inverse, float step, float* to) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    values[i] = rintf(values[i] * inverse) * step;
  }
  store(to, values);
}

// Pieces that a thread keeps in registers; it reads those beyond them twice.
constexpr int kKept = 2;

// A row of threads has a group.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads, kRowBlocks<T>)
    round_activations(const __grid_constant__ RoundArgs args, Divisor groups) {
  const int64_t count = args.rows * args.groups;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t item = block + threadIdx.y;
    // Every thread takes part in the maximum, also of groups beyond the last: those have no pieces.
    const int64_t pieces = item < count ? args.group_size / V : 0;
    const int64_t row = groups.divide(item);
    const T* from = static_cast<const T*>(args.x) + row * args.stride +
                    (item - row * args.groups) * args.group_size;
    float* to = args.to + item * args.group_size;
    const int64_t rest = threadIdx.x + kKept * static_cast<int64_t>(blockDim.x);
    float kept[kKept][V];
    float most = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int64_t piece = threadIdx.x + k * static_cast<int64_t>(blockDim.x);
      if (piece < pieces) {
        read_piece(from, piece, kept[k]);
        most = largest(most, kept[k]);
      }
    }
    for (int64_t piece = rest; piece < pieces; piece += blockDim.x) {
      float own[V];
      read_piece(from, piece, own);
      most = largest(most, own);
    }
    most = row_max(most);
    // A group of zeros, or of numbers so small that they vanish beside any weight.
    const float inverse = 127 / most > FLT_MAX ? 0 : 127 / most;
    const float step = most / 127;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int64_t piece = threadIdx.x + k * static_cast<int64_t>(blockDim.x);
      if (piece < pieces) {
        write_rounded(kept[k], inverse, step, to + piece * V);
      }
    }
    for (int64_t piece = rest; piece < pieces; piece += blockDim.x) {
      float own[V];
      read_piece(from, piece, own);
      write_rounded(own, inverse, step, to + piece * V);
    }
  }
}

template <typename T, int V>
void launch_rounding(const RoundArgs& args, Stream stream) {
  const dim3 block = row_block(args.group_size / V, 128);
  launch("round_activations", round_activations<T, V>,
         blocks_for(args.rows * args.groups, block.y), block, 0, stream, args,
         Divisor(args.groups));
}

}  // namespace

void round_launch(const RoundArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, double>) {
      const bool vectors = has_vectors(args.x, args.stride, kLanes<T>) &&
                           args.group_size % kLanes<T> == 0;
      vectors ? launch_rounding<T, kLanes<float>>(args, stream) : launch_rounding<T, 1>(args, stream);
    }
  });
}

}  // namespace fusewheel
