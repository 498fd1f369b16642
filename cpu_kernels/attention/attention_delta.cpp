// Sums along the results of attention and over its queries, for the gradients

#include "amx.h"
#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// How the product that makes the gradients of shares sums the elements of a row.
enum class Sums {
  kInTurn,   // one after another, kTileDepth of them at a time
  kEvenOdd,  // those of even and of odd number, and both together every 32 elements: AMX
  kPairs,    // two by two: AVX512_BF16
};

Sums sums_in(const AttentionShape& shape) {
  return !multiplies_bfloat16(shape) ? Sums::kInTurn : choices().amx ? Sums::kEvenOdd : Sums::kPairs;
}

#if defined(__AVX512F__)
// Adds the products of `columns` columns; in each lane is a row.
FUSEWHEEL_AMX Vec<float> add_pairs(Vec<float> sum, const Vec<float>* a, const Vec<float>* b,
                                   int64_t columns) {
  const auto pair = [](const Vec<float>* of) {
    return bit_cast<__m512bh>(bit_cast<Bits>(of[0]) >> 16 | (bit_cast<Bits>(of[1]) & 0xffff0000));
  };
  for (int64_t i = 0; i < columns; i += 2) {
    sum = bit_cast<Vec<float>>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), pair(a + i), pair(b + i)));
  }
  return sum;
}
#else
Vec<float> add_pairs(Vec<float> sum, const Vec<float>*, const Vec<float>*, int64_t) { return sum; }
#endif

// kLanes rows at a time, each summed in the order of the product that makes the gradients of shares:
// with a single key, whose value is the result, the gradient of its score is exactly 0.
template <typename A>
void delta(const AttentionBackwardArgs& args, int64_t begin, int64_t end) {
  constexpr int lanes = kLanes<A>;
  const auto& shape = args.forward.shape;
  const int64_t across = blocks_of(shape.queries, lanes);
  const Sums how = sums_in(shape);
  const int64_t depth = how == Sums::kEvenOdd ? 2 * lanes : kTileDepth;
  for (int64_t index = begin * across; index < end * across; ++index) {
    const int64_t batch = index / across / shape.heads;
    const int64_t head = index / across % shape.heads;
    const int64_t first = index % across * lanes;
    const int64_t live = shape.queries - first < lanes ? shape.queries - first : lanes;
    const Head rows[] = {head_of(args.grad, shape.dtype, batch, head, shape.value_size),
                         head_of(args.forward.out, shape.dtype, batch, head, shape.value_size)};
    Vec<A> total = {};
    Vec<A> sums[2] = {};
    for (int64_t j = 0; j < shape.value_size; j += lanes) {
      const int64_t columns = shape.value_size - j < lanes ? shape.value_size - j : lanes;
      Vec<A> values[2][lanes] = {};
      for (int which = 0; which < 2; ++which) {
        for_dtype_in<A>(shape.dtype, [&](auto zero) {
          using T = decltype(zero);
          const Head& own = rows[which];
          for (int64_t lane = 0; lane < live; ++lane) {
            const T* from = static_cast<const T*>(own.data) + (first + lane) * own.row;
            values[which][lane] = gather(from + j * own.element, own.element, columns);
          }
        });
        transpose<A>(values[which]);
      }
      if constexpr (sizeof(A) == sizeof(float)) {
        if (how == Sums::kPairs) {
          total = add_pairs(total, values[0], values[1], columns);
          continue;
        }
      }
      for (int64_t column = 0; column < columns; column += 2) {
        // Lanes past the last column are zeros.
        sums[0] += values[0][column] * values[1][column];
        Vec<A>& sum = how == Sums::kEvenOdd ? sums[1] : sums[0];
        sum += values[0][column + 1] * values[1][column + 1];
      }
      if ((j + lanes) % depth == 0 || j + lanes >= shape.value_size) {
        total += sums[0] + sums[1];
        sums[0] = sums[1] = Vec<A>{};
      }
    }
    const auto& strides = args.grad_logsumexp.strides;
    const A* outer = static_cast<const A*>(args.grad_logsumexp.data) + batch * strides[0] +
                     head * strides[1] + first * strides[2];
    A* to = row_values<A>(args.delta, shape, batch, head) + first;
    store(to, total - gather(outer, strides[2], live), live);
  }
}

// -sum(exp(sink - logsumexp) * (dots - grad_logsumexp)) of heads [begin, end). The result that is given
// is rounded, and in a sum over all queries its last bits would count.
template <typename A>
void grad_sinks(const AttentionBackwardArgs& args, int64_t begin, int64_t end) {
  const auto& shape = args.forward.shape;
  const auto& strides = args.grad_logsumexp.strides;
  for_dtype_in<A>(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t head = begin; head < end; ++head) {
      const A sink = gather(static_cast<const T*>(args.forward.sinks.data) + head, 1, 1)[0];
      double total = 0;
      for (int64_t batch = 0; batch < shape.batch; ++batch) {
        const A* logsumexp = row_values<A>(args.forward.logsumexp, shape, batch, head);
        const A* dots = row_values<A>(args.dots, shape, batch, head);
        const A* outer = static_cast<const A*>(args.grad_logsumexp.data) + batch * strides[0] +
                         head * strides[1];
        for (int64_t i = 0; i < shape.queries; ++i) {
          const A base = logsumexp[i] == kNothing<A> ? A{0} : logsumexp[i];
          const double share = __builtin_exp(static_cast<double>(sink) - base);
          total -= share * (static_cast<double>(dots[i]) - outer[i * strides[2]]);
        }
      }
      store(static_cast<T*>(args.grad_sinks) + head, splat(static_cast<A>(total)), 1);
    }
  });
}

}  // namespace

void attention_delta(const AttentionBackwardArgs& args, int64_t begin, int64_t end) {
  return args.forward.shape.dtype == Dtype::kFloat64 ? delta<double>(args, begin, end)
                                                     : delta<float>(args, begin, end);
}

void attention_grad_sinks(const AttentionBackwardArgs& args, int64_t begin, int64_t end) {
  return args.forward.shape.dtype == Dtype::kFloat64 ? grad_sinks<double>(args, begin, end)
                                                     : grad_sinks<float>(args, begin, end);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
