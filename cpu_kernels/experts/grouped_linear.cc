// The products of groups are those of matmul/, a group's after the other's.

#include <fusewheel/aten.h>
#include <fusewheel/experts/grouped_linear.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "in_turn.h"
#include "matmul/matmul.h"
#include "matmul/prepare.h"

namespace fusewheel {
namespace {

int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 8 : dtype == Dtype::kFloat32 ? 4 : 2;
}

const void* advance(const void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

// Of a weight, that a thread reads on its own.
constexpr int64_t kStretchBytes = int64_t{1} << 19;

int64_t bytes_of(const LinearWeight& weight) {
  const bool is_stored = weight.kind == WeightKind::kBlocks;
  return weight.rows * weight.stride * (is_stored ? 1 : bytes_of(weight.dtype)) + 1;
}

// Products of different sizes, which share the threads: each is cut into parts of a few tasks.
class Products {
 public:
  MatmulPlan plan{0, 0};

  void add(const MatmulArgs& product) {
    if (product.m == 0 || product.n == 0) {
      return;
    }
    const MatmulPlan own = FUSEWHEEL_SELECT(matmul_plan)(product);
    // Neighbouring tasks share what they pack. With one row they read one stretch of memory, which is
    // fast when it is long.
    const int64_t together =
        product.m > 1 ? 4 : std::max<int64_t>(kStretchBytes * own.tasks / bytes_of(product.weight), 1);
    products_.push_back(product);
    sizes_.push_back(together);
    tasks_.push_back(own.tasks);
    firsts_.push_back(plan.tasks);
    plan.tasks += (own.tasks + together - 1) / together;
    plan.scratch_bytes = std::max(plan.scratch_bytes, own.scratch_bytes);
  }

  void run() const {
    const auto tasks = FUSEWHEEL_SELECT(matmul_tasks);
    in_turn(plan, [&](int64_t part, void* scratch) {
      const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), part);
      const auto own = static_cast<size_t>(next - firsts_.begin() - 1);
      const int64_t begin = (part - firsts_[own]) * sizes_[own];
      tasks(products_[own], begin, std::min(begin + sizes_[own], tasks_[own]), scratch);
    });
  }

 private:
  std::vector<MatmulArgs> products_;
  std::vector<int64_t> sizes_;   // of a part, in tasks
  std::vector<int64_t> tasks_;   // in all
  std::vector<int64_t> firsts_;  // the number of the first part
};

LinearWeight weight_of(const GroupWeights& weights, int64_t group) {
  LinearWeight own = weights.first;
  own.data = advance(own.data, group * weights.step);
  return own;
}

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
  // Rows of no group.
  std::memset(static_cast<char*>(args.y) + begin * row_bytes, 0,
              static_cast<size_t>((args.ends.rows - begin) * row_bytes));
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
