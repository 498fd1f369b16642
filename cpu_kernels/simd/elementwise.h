// Runs body(in, out, scalar) over a merged geometry, flat elements [begin, end) of the output's
// order; `in` and `out` are arrays of vectors, one per operand.
#pragma once

#include <fusewheel/geometry.h>

#include "prefetch.h"
#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Inputs are asked for so many bytes ahead: where a body has many instructions, the processor does not
// look that far by itself.
constexpr int64_t kAskAhead = 2048;

// One run along the innermost dimension. `contiguous` says every stride is 1, so that the usual
// call has no branch in its loop.
template <typename T, int outputs, int inputs, bool contiguous, typename Body>
FUSEWHEEL_INLINE void run(T* const* pointers, const int64_t* strides, int64_t count,
                          Accumulate<T> scalar, Body body) {
  using A = Accumulate<T>;
  constexpr int lanes = kLanes<A>;
  const auto step = [&](int64_t i, int64_t live) {
    Vec<A> in[inputs];
    Vec<A> out[outputs];
    for (int k = 0; k < inputs; ++k) {
      const int64_t stride = contiguous ? 1 : strides[outputs + k];
      const T* from = pointers[outputs + k] + i * stride;
      if (stride == 1) {
        if (contiguous && i * static_cast<int64_t>(sizeof(T)) % kLineBytes == 0) {
          prefetch(from, kAskAhead, kLineBytes);
        }
        in[k] = load(from, live);
        continue;
      }
      T gathered[lanes];
      for (int lane = 0; lane < lanes; ++lane) {
        gathered[lane] = from[(lane < live ? lane : 0) * stride];
      }
      in[k] = load(gathered);
    }
    body(in, out, scalar);
    for (int k = 0; k < outputs; ++k) {
      const int64_t stride = contiguous ? 1 : strides[k];
      T* to = pointers[k] + i * stride;
      if (stride == 1) {
        store(to, out[k], live);
        continue;
      }
      T scattered[lanes];
      store(scattered, out[k]);
      for (int64_t lane = 0; lane < live; ++lane) {
        to[lane * stride] = scattered[lane];
      }
    }
  };
  for_each_vector<A>(count, step);
}

template <typename T, int outputs, int inputs, typename Body>
FUSEWHEEL_INLINE void elementwise_as(const ElementwiseArgs<outputs + inputs>& args, int64_t begin,
                                     int64_t end, Body body) {
  constexpr int operands = outputs + inputs;
  const Geometry<operands>& g = args.geometry;
  const auto scalar = static_cast<Accumulate<T>>(args.scalar);
  bool contiguous = true;
  int64_t strides[operands];
  for (int k = 0; k < operands; ++k) {
    strides[k] = g.strides[k][0];
    contiguous = contiguous && strides[k] == 1;
  }
  for (int64_t i = begin; i < end;) {
    // Where the run starts: the position in every dimension, innermost first.
    int64_t rest = i;
    T* pointers[operands];
    for (int k = 0; k < operands; ++k) {
      pointers[k] = static_cast<T*>(args.data[k]);
    }
    int64_t inner = 0;
    for (int d = 0; d < g.dims; ++d) {
      const int64_t position = rest % g.sizes[d];
      rest /= g.sizes[d];
      inner = d == 0 ? position : inner;
      for (int k = 0; k < operands; ++k) {
        pointers[k] += position * g.strides[k][d];
      }
    }
    int64_t count = g.sizes[0] - inner;
    count = count < end - i ? count : end - i;
    if (contiguous) {
      run<T, outputs, inputs, true>(pointers, strides, count, scalar, body);
    } else {
      run<T, outputs, inputs, false>(pointers, strides, count, scalar, body);
    }
    i += count;
  }
}

template <int outputs, int inputs, typename Body>
void elementwise(const ElementwiseArgs<outputs + inputs>& args, int64_t begin, int64_t end,
                 Body body) {
  for_dtype(args.dtype, [&](auto zero) {
    elementwise_as<decltype(zero), outputs, inputs>(args, begin, end, body);
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
