// Rotary position embedding of queries and keys, one launch for both.
//
// Each pair (a, b) of a head is rotated: a' = a cos_a - b sin_a, b' = b cos_b + a sin_b. The pairs
// are (i, i + D/2), or (2i, 2i + 1) where interleaved. The backward pass is the transposed matrix:
// a = a' cos_a + b' sin_b, b = b' cos_b - a' sin_a. Where the tables are narrower than a head, its
// other elements are copied.
//
// A position outside the tables cannot be refused here, where nobody waits for the device: it
// becomes NaN.

#include <fusewheel/rotary/rope_args.h>

#include <cmath>

#include "common/launch.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

constexpr int kBlock = 256;

template <typename A>
__device__ void rotate(A& a, A& b, A cos_a, A cos_b, A sin_a, A sin_b, bool transposed) {
  const A x = a;
  a = x * cos_a - b * (transposed ? -sin_b : sin_a);
  b = b * cos_b + x * (transposed ? -sin_a : sin_b);
}

// The pairs whose first elements start at `i`: a vector of them, or one.
template <bool vectors, typename T>
__device__ void rotate_halves(const T* in, const T* cos, const T* sin, T* out, int64_t i,
                              int64_t half, bool transposed) {
  constexpr int V = vectors ? kLanes<T> : 1;
  Accumulate<T> value[2][V];
  Accumulate<T> c[2][V];
  Accumulate<T> s[2][V];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    load(in + h * half + i, value[h]);
    load(cos + h * half + i, c[h]);
    load(sin + h * half + i, s[h]);
  }
#pragma unroll
  for (int k = 0; k < V; ++k) {
    rotate(value[0][k], value[1][k], c[0][k], c[1][k], s[0][k], s[1][k], transposed);
  }
  store(out + i, value[0]);
  store(out + half + i, value[1]);
}

// Neighbouring elements at `i`: the pairs of one vector, or one pair by single accesses.
template <bool vectors, typename T>
__device__ void rotate_pairs(const T* in, const T* cos, const T* sin, T* out, int64_t i,
                             bool transposed) {
  constexpr int V = vectors ? kLanes<T> : 2;
  Accumulate<T> value[V];
  Accumulate<T> c[V];
  Accumulate<T> s[V];
  if constexpr (vectors) {
    load(in + i, value);
    load(cos + i, c);
    load(sin + i, s);
  } else {
    load(in + i, value, V);
    load(cos + i, c, V);
    load(sin + i, s, V);
  }
#pragma unroll
  for (int k = 0; k < V; k += 2) {
    rotate(value[k], value[k + 1], c[k], c[k + 1], s[k], s[k + 1], transposed);
  }
  if constexpr (vectors) {
    store(out + i, value);
  } else {
    store(out + i, value, V);
  }
}

// V elements that are not rotated; only the first `count` of them exist.
template <bool vectors, int V, typename T>
__device__ void copy(const T* in, T* out, int64_t count) {
  Accumulate<T> value[V];
  if constexpr (vectors) {
    load(in, value);
    store(out, value);
  } else {
    load(in, value, count);
    store(out, value, count);
  }
}

// What a position outside the tables gives.
template <typename T>
__device__ void fill_with_nan(const RopeTensor& tensor, T* out, int64_t size) {
  for (int64_t i = threadIdx.x; i < tensor.heads * size; i += blockDim.x) {
    const int64_t head = i / size;
    narrow(static_cast<Accumulate<T>>(NAN), out[head * tensor.out_strides[1] + i - head * size]);
  }
}

// A block takes one position of one batch entry, all its heads; a thread some vectors of a head.
template <typename T, bool interleaved, bool vectors>
__global__ void __launch_bounds__(kBlock) rope_positions(const __grid_constant__ RopeArgs args) {
  constexpr int V = vectors ? kLanes<T> : interleaved ? 2 : 1;
  const int64_t turned = (interleaved ? args.rotated : args.rotated / 2) / V;
  const int64_t kept = (args.size - args.rotated + V - 1) / V;
  for (int64_t item = blockIdx.x; item < args.batch * args.length; item += gridDim.x) {
    const int64_t batch = item / args.length;
    const int64_t position = item % args.length;
    const int64_t row = args.rows == nullptr ? position
                                             : args.rows[batch * args.row_strides[0] +
                                                         position * args.row_strides[1]];
    const bool known = row >= 0 && row < args.row_count;
    const T* cos = static_cast<const T*>(args.cos) + batch * args.cos_strides[0] +
                   row * args.cos_strides[1];
    const T* sin = static_cast<const T*>(args.sin) + batch * args.sin_strides[0] +
                   row * args.sin_strides[1];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const RopeTensor& tensor = args.tensors[which];
      const T* in = static_cast<const T*>(tensor.in) + batch * tensor.in_strides[0] +
                    position * tensor.in_strides[2];
      T* out = static_cast<T*>(tensor.out) + batch * tensor.out_strides[0] +
               position * tensor.out_strides[2];
      if (!known) {
        fill_with_nan(tensor, out, args.size);
        continue;
      }
      const int64_t units = tensor.in == tensor.out ? turned : turned + kept;  // of a head
      for (int64_t unit = threadIdx.x; unit < tensor.heads * units; unit += blockDim.x) {
        const int64_t head = unit / units;
        const int64_t within = unit - head * units;
        const int64_t i = within * V;
        const T* from = in + head * tensor.in_strides[1];
        T* to = out + head * tensor.out_strides[1];
        if (within >= turned) {
          const int64_t rest = args.rotated + (within - turned) * V;
          copy<vectors, V>(from + rest, to + rest, args.size - rest);
        } else if constexpr (interleaved) {
          rotate_pairs<vectors>(from, cos, sin, to, i, args.transposed);
        } else {
          rotate_halves<vectors>(from, cos, sin, to, i, args.rotated / 2, args.transposed);
        }
      }
    }
  }
}

template <int count>
bool all_multiples(const int64_t (&strides)[count], int64_t lanes) {
  for (const int64_t stride : strides) {
    if (stride % lanes != 0) {
      return false;
    }
  }
  return true;
}

// Every vector of every head and table row is aligned.
bool has_vectors(const RopeArgs& args, int64_t lanes) {
  bool vectors = (args.interleaved ? args.rotated : args.rotated / 2) % lanes == 0 &&
                 (args.size - args.rotated) % lanes == 0 && is_aligned(args.cos) &&
                 is_aligned(args.sin) && all_multiples(args.cos_strides, lanes) &&
                 all_multiples(args.sin_strides, lanes);
  for (const RopeTensor& tensor : args.tensors) {
    vectors = vectors && is_aligned(tensor.in) && is_aligned(tensor.out) &&
              all_multiples(tensor.in_strides, lanes) &&
              all_multiples(tensor.out_strides, lanes);
  }
  return vectors;
}

}  // namespace

void rope_launch(const RopeArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto run = [&](auto kernel) {
      launch("rope", kernel, blocks_for(args.batch * args.length, 1), kBlock, 0, stream, args);
    };
    // float64 is there for checks: it has no vectors.
    constexpr bool kVectors = sizeof(T) < sizeof(double);
    const bool vectors = kVectors && has_vectors(args, kLanes<T>);
    if (args.interleaved) {
      run(vectors ? rope_positions<T, true, kVectors> : rope_positions<T, true, false>);
    } else {
      run(vectors ? rope_positions<T, false, kVectors> : rope_positions<T, false, false>);
    }
  });
}

}  // namespace fusewheel
