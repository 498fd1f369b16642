// The products of groups are those of matmul/, a group's after the other's.

#include <fusewheel/aten.h>
#include <fusewheel/experts/grouped_linear.h>

#include <cstring>

#include "matmul/prepare.h"
#include "products.h"

namespace fusewheel {
namespace {

// Rows as the products of their groups want them: groups of many rows may be multiplied as bfloat16.
class Activations {
 public:
  Activations(const RowMatrix& x, const LinearWeight& weight, const GroupEnds& ends, bool wide)
      : bfloat16_(multiplies_bfloat16(x, weight)) {
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
  bool has_bfloat16(int64_t rows) const { return bfloat16_ && rows >= kFewestBFloat16Rows; }

  const RowMatrix& rows(bool bfloat16) const { return bfloat16 ? *whole_ : *widened_; }

 private:
  bool bfloat16_;
  std::optional<RowMatrix> whole_;
  std::optional<RowMatrix> widened_;
};

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
    products.add({advance(rows.tensor.const_data_ptr(), begin * rows.stride * number), rows.stride,
                  end - begin, columns, inner, weight_of(weights, e), transposed,
                  bias ? advance(bias->tensor.const_data_ptr(), e * bias->stride * (wide ? 8 : 4))
                       : nullptr,
                  static_cast<char*>(args.y) + begin * row_bytes, args.dtype, false, {}, false,
                  bfloat16});
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
  const RowMatrix a = widen(call.grad, wide, true);
  const Dtype dtype = dtype_of(sums);
  const int64_t weight_bytes = args.grad_columns * args.x_columns * bytes_of(dtype);
  LinearWeight rows = {};
  rows.kind = WeightKind::kFloating;
  rows.dtype = args.dtype;
  rows.columns = args.x_columns;
  rows.stride = args.x_stride;
  Products products;
  int64_t begin = 0;
  for (int64_t e = 0; e < args.ends.count; ++e) {
    const int64_t end = end_of(args.ends, e);
    rows.data = advance(args.x, begin * args.x_stride * bytes_of(args.dtype));
    rows.rows = end - begin;
    products.add({advance(a.tensor.const_data_ptr(), begin * (wide ? 8 : 4)), a.stride,
                  args.grad_columns, args.x_columns, end - begin, rows, true, nullptr,
                  static_cast<char*>(sums.mutable_data_ptr()) + e * weight_bytes, dtype, false,
                  {}});
    begin = end;
  }
  products.run();
  call.grad_weight = as_type(sums, call.grad_weight.scalar_type());
}

}  // namespace fusewheel
