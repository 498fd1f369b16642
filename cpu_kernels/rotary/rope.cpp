// Rotary position embedding of queries and keys, one pass over both.
//
// Each pair (a, b) of a head is rotated: a' = a cos_a - b sin_a, b' = b cos_b + a sin_b. The pairs
// are (i, i + D/2), or (2i, 2i + 1) where interleaved. The backward pass is the transposed matrix:
// a = a' cos_a + b' sin_b, b = b' cos_b - a' sin_a. Where the tables are narrower than a head, its
// other elements are copied.

#include <fusewheel/rotary/rope_args.h>

#include "parallel.h"
#include "simd/vec.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

template <typename T>
FUSEWHEEL_INLINE void rotate_halves(const T* in, const T* cos, const T* sin, T* out, int64_t half,
                                    bool transposed) {
  using A = Accumulate<T>;
  for (int64_t i = 0; i < half; i += kLanes<A>) {
    const int64_t live = half - i < kLanes<A> ? half - i : kLanes<A>;
    const auto a = load(in + i, live);
    const auto b = load(in + half + i, live);
    const auto cos_a = load(cos + i, live);
    const auto cos_b = load(cos + half + i, live);
    auto sin_a = load(sin + i, live);
    auto sin_b = load(sin + half + i, live);
    if (transposed) {
      const auto swapped = sin_a;
      sin_a = -sin_b;
      sin_b = -swapped;
    }
    store(out + i, a * cos_a - b * sin_a, live);
    store(out + half + i, b * cos_b + a * sin_b, live);
  }
}

// Even and odd lanes of a vector are the pairs; the neighbour comes from a shuffle.
template <typename T>
FUSEWHEEL_INLINE void rotate_pairs(const T* in, const T* cos, const T* sin, T* out, int64_t size,
                                   bool transposed) {
  using A = Accumulate<T>;
  using Integer = typename VecOf<A>::integer;
  Integer neighbour;
  Vec<A> sign;
  for (int lane = 0; lane < kLanes<A>; ++lane) {
    neighbour[lane] = lane ^ 1;
    sign[lane] = (lane & 1) == static_cast<int>(transposed) ? -1 : 1;
  }
  for (int64_t i = 0; i < size; i += kLanes<A>) {
    const int64_t live = size - i < kLanes<A> ? size - i : kLanes<A>;
    const auto value = load(in + i, live);
    auto s = load(sin + i, live);
    if (transposed) {
      s = shuffle(s, neighbour);
    }
    store(out + i, value * load(cos + i, live) + shuffle(value, neighbour) * (s * sign),
          live);
  }
}

template <typename T>
FUSEWHEEL_INLINE void copy(const T* in, T* out, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = in[i];
  }
}

template <typename T>
void rotate(const RopeArgs& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / args.length;
    const int64_t position = item % args.length;
    const int64_t row = args.rows == nullptr ? position
                                             : args.rows[batch * args.row_strides[0] +
                                                         position * args.row_strides[1]];
    const T* cos = static_cast<const T*>(args.cos) + batch * args.cos_strides[0] +
                   row * args.cos_strides[1];
    const T* sin = static_cast<const T*>(args.sin) + batch * args.sin_strides[0] +
                   row * args.sin_strides[1];
    for (const RopeTensor& tensor : args.tensors) {
      const T* in = static_cast<const T*>(tensor.in) + batch * tensor.in_strides[0] +
                    position * tensor.in_strides[2];
      T* out = static_cast<T*>(tensor.out) + batch * tensor.out_strides[0] +
               position * tensor.out_strides[2];
      for (int64_t head = 0; head < tensor.heads; ++head) {
        if (args.interleaved) {
          rotate_pairs(in, cos, sin, out, args.rotated, args.transposed);
        } else {
          rotate_halves(in, cos, sin, out, args.rotated / 2, args.transposed);
        }
        if (in != out) {
          copy(in + args.rotated, out + args.rotated, args.size - args.rotated);
        }
        in += tensor.in_strides[1];
        out += tensor.out_strides[1];
      }
    }
  }
}

}  // namespace

// For positions [begin, end) of all batch entries, one entry after another.
void rope_positions(const RopeArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) { rotate<decltype(zero)>(args, begin, end); });
}

void rope_launch(const RopeArgs& args) {
  const int64_t heads = args.tensors[0].heads + args.tensors[1].heads;
  parallel_rows(rope_positions, args, args.batch * args.length, heads * args.size);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(rope_launch, RopeArgs);
