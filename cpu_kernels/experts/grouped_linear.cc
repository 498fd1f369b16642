// The products of groups are those of matmul/, a group's after the other's.

#include <fusewheel/aten.h>
#include <fusewheel/experts/grouped_linear.h>

#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "matmul/bfloat16_rows.h"
#include "matmul/prepare.h"
#include "products.h"

namespace fusewheel {
namespace {

// Rows as the products of their groups want them: groups of many rows may be multiplied as bfloat16.
class Activations {
 public:
  Activations(const RowMatrix& x, const LinearWeight& weight, const GroupEnds& ends, bool wide)
      : bfloat16_(multiplies_bfloat16(x, weight)), fewest_(fewest_rows(weight)) {
    bool some = false;
    bool all = true;
    int64_t begin = 0;
    for (int64_t e = 0; e < ends.count; ++e) {
      const int64_t end = end_of(ends, e);
      const bool own = has_bfloat16(end - begin);
      some = some || own;
      all = all && (own || begin == end);
      begin = end;
    }
    if (some) {
      whole_ = whole_rows(x, x.count + 1);
    }
    if (!all) {
      widened_ = widen(x, wide);
    }
  }

  // Whether a group of so many rows is multiplied as bfloat16.
  bool has_bfloat16(int64_t rows) const { return bfloat16_ && rows >= fewest_; }

  const RowMatrix& rows(bool bfloat16) const { return bfloat16 ? *whole_ : *widened_; }

 private:
  static int64_t fewest_rows(const LinearWeight& weight) {
    return weight.kind == WeightKind::kFloating ? kFewestBFloat16Rows : kFewestRoundedRows;
  }

  bool bfloat16_;
  int64_t fewest_;
  std::optional<RowMatrix> whole_;
  std::optional<RowMatrix> widened_;
};

// Gradients turned, as their products with x want them: a row for each column of theirs. Groups of many
// rows are multiplied as bfloat16; each begins at a whole number of steps then.
class TurnedGradients {
 public:
  TurnedGradients(const RowMatrix& grad, const RowMatrix& x, const GroupEnds& ends, bool wide)
      : bfloat16_(multiplies_bfloat16(grad, numbers_of(x))) {
    int64_t begin = 0;
    int64_t columns = 0;
    bool all = true;
    for (int64_t e = 0; e < ends.count; ++e) {
      const int64_t end = end_of(ends, e);
      begins_.push_back(columns);
      const bool own = has_bfloat16(end - begin);
      columns += own ? whole_steps(end - begin) : 0;
      all = all && (own || begin == end);
      begin = end;
    }
    if (columns > 0) {
      turn(grad, ends, columns);
    }
    if (!all) {
      widened_ = widen(grad, wide, true);
    }
  }

  // Fewer rows would be less than half of a step.
  bool has_bfloat16(int64_t rows) const { return bfloat16_ && rows > kBFloat16Step / 2; }

  // Of group `e`, whose first row is `begin`, and from one row to the next.
  std::pair<const void*, int64_t> rows(int64_t e, int64_t begin, bool bfloat16, bool wide) const {
    if (bfloat16) {
      return {advance(turned_->const_data_ptr(), begins_[static_cast<size_t>(e)] * 2), stride_};
    }
    if (!widened_) {
      return {nullptr, 0};  // of a group without rows
    }
    return {advance(widened_->tensor.const_data_ptr(), begin * (wide ? 8 : 4)), widened_->stride};
  }

 private:
  static LinearWeight numbers_of(const RowMatrix& x) {
    LinearWeight weight = {};
    weight.kind = WeightKind::kFloating;
    weight.dtype = dtype_of(x.tensor);
    return weight;
  }

  void turn(const RowMatrix& grad, const GroupEnds& ends, int64_t columns) {
    // An odd number of cache lines: rows would share few places of the first-level cache.
    stride_ = (columns / kBFloat16Step | 1) * kBFloat16Step;
    // Behind the last row there is memory for a whole tile.
    const int64_t sizes[] = {grad.size + kBFloat16Tile - 1, stride_};
    turned_ = empty_contiguous({sizes, 2}, ScalarType::BFloat16, grad.tensor);
    auto* to = static_cast<char*>(turned_->mutable_data_ptr());
    std::memset(to + grad.size * stride_ * 2, 0, static_cast<size_t>((kBFloat16Tile - 1) * stride_ * 2));
    const auto all = FUSEWHEEL_SELECT(turn_rows);
    FUSEWHEEL_ISA::parallel_for(
        grad.size, FUSEWHEEL_ISA::kGrain / columns + 1, [&](int64_t first, int64_t last) {
          int64_t begin = 0;
          for (int64_t e = 0; e < ends.count; ++e) {
            const int64_t end = end_of(ends, e);
            const int64_t rows = end - begin;
            if (has_bfloat16(rows)) {
              all({advance(grad.tensor.const_data_ptr(), begin * grad.stride * 2), grad.stride, rows,
                   to + begins_[static_cast<size_t>(e)] * 2, stride_, whole_steps(rows)},
                  first, last);
            }
            begin = end;
          }
        });
  }

  bool bfloat16_;
  std::vector<int64_t> begins_;  // where a group begins in a turned row
  int64_t stride_ = 0;
  std::optional<Tensor> turned_;
  std::optional<RowMatrix> widened_;
};

// Whether a matrix is larger than most processors' caches, and its rows begin with a cache line.
bool is_past_caches(const Tensor& y) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kCaches = int64_t{64} << 20;
  const int64_t size = bytes_of(dtype_of(y));
  const auto address = reinterpret_cast<uintptr_t>(y.const_data_ptr());
  const int64_t row_bytes = y.sizes()[y.dim() - 1] * size;
  return y.numel() * size >= kCaches && address % kLine == 0 && row_bytes % kLine == 0;
}

}  // namespace

void multiply(const char*, GroupedLinear& call) {
  const GroupedProductArgs& args = call.args;
  const GroupWeights& weights = args.weights;
  const bool wide = args.dtype == Dtype::kFloat64;
  const bool transposed = weights.transposed != args.backward;
  const int64_t columns = args.backward ? call.weight.columns : call.weight.rows;
  const int64_t inner = args.backward ? call.weight.rows : call.weight.columns;
  const Activations a(call.x, weights.first, args.ends, wide);
  std::optional<RowMatrix> bias;
  if (call.bias.has_value()) {
    bias = widen({*call.bias, call.weight.count, columns, columns}, wide);
  }
  const int64_t row_bytes = columns * bytes_of(args.dtype);
  Products products;
  int64_t begin = 0;
  for (int64_t e = 0; e < args.ends.count; ++e) {
    const int64_t end = end_of(args.ends, e);
    if (begin == end) {
      continue;
    }
    const bool bfloat16 = a.has_bfloat16(end - begin);
    const RowMatrix& rows = a.rows(bfloat16);
    const int64_t number = bfloat16 ? 2 : wide ? 8 : 4;
    MatmulArgs product;
    product.a = advance(rows.tensor.const_data_ptr(), begin * rows.stride * number);
    product.a_stride = rows.stride;
    product.m = end - begin;
    product.n = columns;
    product.k = inner;
    product.weight = weight_of(weights, e);
    product.transposed = transposed;
    if (bias) {
      product.bias = advance(bias->tensor.const_data_ptr(), e * bias->stride * (wide ? 8 : 4));
    }
    product.y = static_cast<char*>(args.y) + begin * row_bytes;
    product.dtype = args.dtype;
    product.bfloat16 = bfloat16;
    products.add(product);
    begin = end;
  }
  // Rows of no group. Without any there may be no memory.
  if (begin < args.ends.rows && row_bytes > 0) {
    std::memset(static_cast<char*>(args.y) + begin * row_bytes, 0,
                static_cast<size_t>((args.ends.rows - begin) * row_bytes));
  }
  products.run();
}

// Sums of float64 are in float64, be the weight narrower or not.
void multiply(const char*, GroupedLinearBackwardWeight& call) {
  const GroupedGradientArgs& args = call.args;
  const bool wide = args.dtype == Dtype::kFloat64;
  Tensor sums = call.grad_weight;
  if (wide) {
    sums = empty_contiguous(sums.sizes(), ScalarType::Double, sums);
  }
  const bool past_caches = is_past_caches(sums);
  const TurnedGradients turned(call.grad, call.x, args.ends, wide);
  const Dtype dtype = dtype_of(sums);
  const int64_t weight_bytes = args.grad_columns * args.x_columns * bytes_of(dtype);
  MatmulArgs product;
  product.m = args.grad_columns;
  product.n = args.x_columns;
  LinearWeight& rows = product.weight;
  rows.kind = WeightKind::kFloating;
  rows.dtype = args.dtype;
  rows.columns = args.x_columns;
  rows.stride = args.x_stride;
  product.transposed = true;
  product.dtype = dtype;
  product.past_caches = past_caches;
  Products products;
  int64_t begin = 0;
  for (int64_t e = 0; e < args.ends.count; ++e) {
    const int64_t end = end_of(args.ends, e);
    rows.data = advance(args.x, begin * args.x_stride * bytes_of(args.dtype));
    rows.rows = end - begin;
    product.k = end - begin;
    product.bfloat16 = turned.has_bfloat16(end - begin);
    std::tie(product.a, product.a_stride) = turned.rows(e, begin, product.bfloat16, wide);
    product.y = static_cast<char*>(sums.mutable_data_ptr()) + e * weight_bytes;
    products.add(product);
    begin = end;
  }
  products.run();
  call.grad_weight = as_type(sums, call.grad_weight.scalar_type());
}

}  // namespace fusewheel
