// The experts of a mixture in one call: the products of each, what is between them, the weighted sum.

#include <fusewheel/experts/experts.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "experts.h"
#include "matmul/prepare.h"
#include "order.h"
#include "products.h"

namespace fusewheel {
namespace {

enum Activation : int64_t { kSilu, kGelu, kGeluTanh };

// Pieces of one piece of memory. The first round counts, the second gives them out.
class Pieces {
 public:
  template <typename Take>
  Pieces(const Tensor& like, const Take& take) {
    take(*this);
    memory_ = empty_contiguous({&used_, 1}, ScalarType::Byte, like);
    start_ = static_cast<char*>(memory_->mutable_data_ptr());
    used_ = 0;
    take(*this);
  }

  char* of(int64_t bytes) {
    constexpr int64_t kLine = 64;
    char* piece = start_ == nullptr ? nullptr : start_ + used_;
    used_ += (bytes + kLine - 1) / kLine * kLine;
    return piece;
  }

 private:
  std::optional<Tensor> memory_;
  char* start_ = nullptr;
  int64_t used_ = 0;
};

class Mixture {
 public:
  Mixture(const Tensor& x, const Order& order, const Experts::Layer& gate_up,
          const Experts::Layer& down, int64_t activation)
      : order_(order),
        activation_(activation),
        dtype_(dtype_of(x)),
        wide_(dtype_ == Dtype::kFloat64),
        x_(widen(rows_of(x), wide_)),
        features_(x.sizes()[1]),
        inner_(down.weight.columns),
        gate_up_(gate_up),
        down_(down),
        pieces_(x, [this](Pieces& pieces) { lay_out(pieces); }),
        left_(order.groups.size()) {}

  // Each token's experts, sorted by expert, in the dtype of x.
  const void* run() {
    const size_t count = order_.groups.size();
    Products products;
    for (size_t g = 0; g < count; ++g) {
      left_[g] = products.add(first_product(g), static_cast<int64_t>(g));
    }
    for (size_t g = 0; g < count; ++g) {
      products.add(last_product(g), static_cast<int64_t>(count + g));
    }
    // Parts are taken in turn, so those that a thread waits for are all being worked on.
    const auto groups = static_cast<int64_t>(count);
    products.run(
        [&](int64_t g) {
          while (g >= groups && left_[static_cast<size_t>(g - groups)] >= 0 && inner_ > 0) {
            std::this_thread::yield();
          }
        },
        [&](int64_t g) {
          if (g < groups && --left_[static_cast<size_t>(g)] == 0) {
            activate(static_cast<size_t>(g));
            left_[static_cast<size_t>(g)] = -1;
          }
        });
    return y_;
  }

 private:
  void lay_out(Pieces& pieces) {
    const auto pairs = static_cast<int64_t>(order_.tokens.size());
    const int64_t size = bytes_of(dtype_);
    const int64_t number = wide_ ? 8 : 4;
    const auto groups = static_cast<int64_t>(order_.groups.size());
    rows_ = pieces.of(pairs * features_ * number);
    both_ = pieces.of(pairs * 2 * inner_ * size);
    hidden_ = pieces.of(pairs * inner_ * size);
    widened_ = size == number ? hidden_ : pieces.of(pairs * inner_ * number);
    y_ = pieces.of(pairs * features_ * size);
    first_bias_ = pieces.of(gate_up_.bias ? groups * 2 * inner_ * number : 0);
    last_bias_ = pieces.of(down_.bias ? groups * features_ * number : 0);
  }

  MatmulArgs first_product(size_t g) {
    const int64_t begin = order_.begin(g);
    const int64_t rows = order_.ends[g] - begin;
    const int64_t number = wide_ ? 8 : 4;
    const int64_t stride = x_.stride * number;
    const void* a = advance(x_.tensor.const_data_ptr(), order_.tokens[begin] * stride);
    // A row is read where it is, several are brought together.
    for (int64_t i = 0; rows > 1 && i < rows; ++i) {
      std::memcpy(rows_ + (begin + i) * features_ * number,
                  advance(x_.tensor.const_data_ptr(), order_.tokens[begin + i] * stride),
                  static_cast<size_t>(features_ * number));
    }
    if (rows > 1) {
      a = rows_ + begin * features_ * number;
    }
    return product(g, gate_up_, first_bias_, a, features_, both_ + begin * 2 * inner_ * bytes_of(dtype_));
  }

  MatmulArgs last_product(size_t g) {
    const int64_t begin = order_.begin(g);
    return product(g, down_, last_bias_, widened_ + begin * inner_ * (wide_ ? 8 : 4), inner_,
                   y_ + begin * features_ * bytes_of(dtype_));
  }

  MatmulArgs product(size_t g, const Experts::Layer& layer, char* biases, const void* a,
                     int64_t stride, void* y) {
    const CheckedGroups& weight = layer.weight;
    const int64_t expert = order_.groups[g];
    MatmulArgs args;
    if (layer.bias) {
      const Dtype dtype = dtype_of(*layer.bias);
      const int64_t step = weight.rows;
      char* to = biases + static_cast<int64_t>(g) * weight.rows * (wide_ ? 8 : 4);
      FUSEWHEEL_SELECT(widen_rows)
      ({advance(layer.bias->const_data_ptr(), expert * step * bytes_of(dtype)), dtype, step,
        weight.rows, false, 1, to, weight.rows, wide_},
       0, 1);
      args.bias = to;
    }
    args.a = a;
    args.a_stride = stride;
    args.m = order_.ends[g] - order_.begin(g);
    args.n = weight.rows;
    args.k = weight.columns;
    args.weight = weight_of(weight.weights, expert);
    args.transposed = weight.weights.transposed;
    args.y = y;
    args.dtype = dtype_;
    return args;
  }

  // What is between the products, for the pairs of one expert.
  void activate(size_t g) {
    const int64_t size = bytes_of(dtype_);
    const int64_t begin = order_.begin(g);
    const int64_t end = order_.ends[g];
    ElementwiseArgs<3> args;
    args.geometry.dims = 1;
    args.geometry.numel = args.geometry.sizes[0] = inner_;
    args.dtype = dtype_;
    args.scalar = activation_ == kGeluTanh ? 1 : 0;
    const auto range =
        activation_ == kSilu ? FUSEWHEEL_SELECT(silu_mul_range) : FUSEWHEEL_SELECT(gelu_mul_range);
    for (int64_t pair = begin; pair < end; ++pair) {
      char* const both = both_ + pair * 2 * inner_ * size;
      char* const data[] = {hidden_ + pair * inner_ * size, both, both + inner_ * size};
      for (int k = 0; k < 3; ++k) {
        args.data[k] = data[k];
        args.geometry.strides[k][0] = 1;
      }
      range(args, 0, inner_);
    }
    if (widened_ != hidden_) {
      FUSEWHEEL_SELECT(widen_rows)
      ({hidden_, dtype_, inner_, inner_, false, end, widened_, inner_, wide_}, begin, end);
    }
  }

  const Order& order_;
  int64_t activation_;
  Dtype dtype_;
  bool wide_;
  RowMatrix x_;
  int64_t features_;
  int64_t inner_;
  const Experts::Layer& gate_up_;
  const Experts::Layer& down_;
  char* rows_;     // of x, by pair
  char* both_;     // gate and up of each pair
  char* hidden_;   // what is between the layers
  char* widened_;  // the same as the products want it
  char* y_;        // [pairs, features]
  char* first_bias_;
  char* last_bias_;
  Pieces pieces_;
  // Of each expert: how many parts of its first product are not done; -1 once the last may begin.
  std::vector<std::atomic<int64_t>> left_;
};

}  // namespace

void mix(const char*, Experts& call) {
  const Tensor& x = call.x;
  const Order order(call.indices, call.first.weight.count);
  Mixture mixture(x, order, call.first, call.last, call.activation);
  const void* pairs = mixture.run();
  const RowMatrix factors = widen(rows_of(call.weights), dtype_of(x) == Dtype::kFloat64);
  const int64_t k = call.indices.sizes()[1];
  const SumPairsArgs sums{pairs, order.places.data(), factors.tensor.const_data_ptr(),
                          factors.stride, k, x.sizes()[1], dtype_of(x),
                          call.y.mutable_data_ptr()};
  FUSEWHEEL_ISA::parallel_rows(FUSEWHEEL_SELECT(sum_pairs), sums, x.sizes()[0],
                               x.sizes()[1] * std::max<int64_t>(k, 1));
}

}  // namespace fusewheel
