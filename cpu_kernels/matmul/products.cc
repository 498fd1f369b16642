#include "products.h"

#include <algorithm>
#include <memory>

#include "matmul.h"
#include "parallel.h"
#include "prepare.h"

namespace fusewheel {

using FUSEWHEEL_ISA::kGrain;
using FUSEWHEEL_ISA::parallel_for;

namespace {

// Memory a thread keeps for its next call: fresh pages would cost more than a small product.
void* thread_scratch(int64_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local int64_t size = 0;
  constexpr int64_t kLine = 64;
  if (size < bytes + kLine) {
    memory.reset();
    memory.reset(new char[static_cast<size_t>(bytes + kLine)]);
    size = bytes + kLine;
  }
  void* start = memory.get();
  size_t space = static_cast<size_t>(size);
  return std::align(kLine, static_cast<size_t>(bytes), start, space);
}

// How many tasks of so many multiplications a thread takes at least.
int64_t grain_of(int64_t work) { return 4 * kGrain / std::max<int64_t>(work, 1) + 1; }

// How many rounded rows stream past 4-bit codes. On a Zen 4, for weights of 2048 x 2048 and 4096 x 4096, packing
// the codes was faster from 8 rows on at level v3 without VNNI, and from 13 rows on at level v4. From 12 rows on
// AMX multiplies packed codes.
int64_t most_digit_rows() { return choices().vnni ? kMostDigitRows : 7; }

// Whether each thread rounds the rows for itself, which takes no memory.
bool is_rounded_by_threads(const LinearWeight& weight, int64_t rows) {
  return weight.kind == WeightKind::kInt4 && rows <= most_digit_rows();
}

// `rows` rows of a times the weight's transpose; or times the weight itself, if that is `transposed`.
MatmulArgs product(const RowMatrix& a, int64_t rows, const LinearWeight& weight, bool transposed,
                   const Tensor& y) {
  MatmulArgs args;
  args.a = a.tensor.const_data_ptr();
  args.a_stride = a.stride;
  args.m = rows;
  args.n = transposed ? weight.columns : weight.rows;
  args.k = transposed ? weight.rows : weight.columns;
  args.weight = weight;
  args.transposed = transposed;
  args.y = y.mutable_data_ptr();
  args.dtype = dtype_of(y);
  return args;
}

bool is_wide(const Tensor& y) { return y.scalar_type() == ScalarType::Double; }

void run(MatmulArgs args) {
  if (args.m == 0 || args.n == 0) {
    return;
  }
  const MatmulPlan plan = FUSEWHEEL_SELECT(matmul_plan)(args);
  const auto tasks = FUSEWHEEL_SELECT(matmul_tasks);
  parallel_for(plan.tasks, grain_of(args.n * args.m * args.k / plan.tasks),
               [&](int64_t begin, int64_t end) {
                 tasks(args, begin, end, thread_scratch(plan.scratch_bytes));
               });
}

thread_local WaitingProducts* waiting = nullptr;

bool are_few(int64_t rows) { return rows > 0 && rows <= kMostWaitingRows; }

// Whether two layers, in results of the same dtype, widen or round the same rows to the same numbers.
bool is_prepared_alike(const Linear& one, const Linear& other) {
  const RowMatrix& x = one.x;
  const RowMatrix& rows = other.x;
  const LinearWeight& weight = one.weight.weight;
  const LinearWeight& next = other.weight.weight;
  return x.tensor.const_data_ptr() == rows.tensor.const_data_ptr() &&
         x.tensor.scalar_type() == rows.tensor.scalar_type() && x.count == rows.count &&
         x.size == rows.size && x.stride == rows.stride && one.y.scalar_type() == other.y.scalar_type() &&
         weight.kind == next.kind && weight.dtype == next.dtype && weight.group_size == next.group_size &&
         weight.groups == next.groups;
}

}  // namespace

bool is_fast_in_aten(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double: return true;
    case ScalarType::BFloat16: return !choices().own_bfloat16;
    case ScalarType::Half: return !choices().own_float16;
    default: return !choices().own_float32;
  }
}

PreparedProduct::PreparedProduct(const RowMatrix& x, const LinearWeight& weight,
                                 const std::optional<Tensor>& bias, const Tensor& y,
                                 int64_t group_size)
    : a_(x) {
  const bool bfloat16 = group_size == 0 && multiplies_bfloat16(x, weight);
  a_ = bfloat16 ? whole_rows(x, x.count) : widen(x, is_wide(y));
  const bool rounds = group_size > 0 && !is_wide(y);
  const bool integers = rounds && weight.columns > 0 &&
                        FUSEWHEEL_SELECT(has_integer_products)(weight, x.count);
  if (rounds && !integers) {
    a_ = round_to_int8(a_, group_size);
  }
  if (!integers && !bfloat16) {
    a_ = spread(a_, weight.rows);
  }
  args = product(a_, x.count, weight, false, y);
  args.bias = bias_of(bias, y, weight.rows);
  args.dynamic = integers;
  args.bfloat16 = bfloat16;
  if (integers && !is_rounded_by_threads(weight, x.count)) {
    rounded_ = std::make_shared<const RoundedMatrix>(a_, weight);
    args.rounded = rounded_->rows();
  }
}

PreparedProduct::PreparedProduct(const PreparedProduct& other, const LinearWeight& weight,
                                 const std::optional<Tensor>& bias, const Tensor& y)
    : args(other.args), a_(other.a_), rounded_(other.rounded_) {
  args.n = weight.rows;
  args.weight = weight;
  args.bias = bias_of(bias, y, weight.rows);
  args.y = y.mutable_data_ptr();
}

const void* PreparedProduct::bias_of(const std::optional<Tensor>& bias, const Tensor& y, int64_t size) {
  if (!bias.has_value()) {
    return nullptr;
  }
  bias_ = widen({*bias, 1, size, size}, is_wide(y));
  return bias_->tensor.const_data_ptr();
}

void matmul(const RowMatrix& x, const LinearWeight& weight, const std::optional<Tensor>& bias,
            Tensor& y, int64_t group_size) {
  run(PreparedProduct(x, weight, bias, y, group_size).args);
}

WaitingProducts::WaitingProducts() { waiting = this; }

WaitingProducts::~WaitingProducts() { waiting = nullptr; }

void WaitingProducts::wait(const MatmulArgs& args) {
  products_.push_back({args, FUSEWHEEL_SELECT(matmul_plan)(args)});
}

PreparedProduct WaitingProducts::prepare(const Linear& call, int64_t group_size) const {
  const LinearWeight& weight = call.weight.weight;
  for (const Owner& owner : owners_) {
    if (owner.group_size == group_size && is_prepared_alike(owner.call, call)) {
      return {owner.prepared, weight, call.bias, call.y};
    }
  }
  return {call.x, weight, call.bias, call.y, group_size};
}

bool WaitingProducts::take(const Linear& call, int64_t group_size) {
  if (waiting == nullptr || !are_few(call.x.count) || call.weight.weight.rows == 0) {
    return false;
  }
  PreparedProduct prepared = waiting->prepare(call, group_size);
  waiting->wait(prepared.args);
  waiting->owners_.push_back({call, group_size, std::move(prepared)});
  return true;
}

bool WaitingProducts::can_add(const LinearWeight& weight, int64_t rows, bool dynamic) {
  return are_few(rows) && (!dynamic || (is_rounded_by_threads(weight, rows) &&
                                        FUSEWHEEL_SELECT(has_integer_products)(weight, rows)));
}

void WaitingProducts::add(const float* x, int64_t rows, int64_t stride, const LinearWeight& weight,
                          const float* bias, float* y, bool dynamic) {
  MatmulArgs args;
  args.a = x;
  args.a_stride = stride;
  args.m = rows;
  args.n = weight.rows;
  args.k = weight.columns;
  args.weight = weight;
  args.bias = bias;
  args.y = y;
  args.dynamic = dynamic;
  wait(args);
  borrows_ = true;
}

void WaitingProducts::run() {
  int64_t tasks = 0;
  int64_t work = 0;
  int64_t scratch = 0;
  for (const auto& [args, plan] : products_) {
    tasks += plan.tasks;
    work += args.n * args.m * args.k;
    scratch = std::max(scratch, plan.scratch_bytes);
  }
  const auto compute = FUSEWHEEL_SELECT(matmul_tasks);
  parallel_for(tasks, grain_of(work / std::max<int64_t>(tasks, 1)), [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // the number of the product's first task
    for (const auto& [args, plan] : products_) {
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, plan.tasks);
      if (from < to) {
        compute(args, from, to, thread_scratch(scratch));
      }
      first += plan.tasks;
    }
  });
  products_.clear();
  owners_.clear();
  borrows_ = false;
}

void matmul_transposed(const RowMatrix& grad, const LinearWeight& weight, Tensor& y) {
  const bool bfloat16 = multiplies_bfloat16(grad, weight);
  const RowMatrix a = bfloat16 ? whole_rows(grad, grad.count)
                               : spread(widen(grad, is_wide(y)), weight.columns);
  MatmulArgs args = product(a, grad.count, weight, true, y);
  args.bfloat16 = bfloat16;
  run(args);
}

void matmul_gradient(const RowMatrix& grad, const RowMatrix& x, Tensor& y, bool add,
                     const std::optional<Tensor>& memory) {
  const RowMatrix a = columns_in_tiles(grad, is_wide(y), memory);
  LinearWeight weight = {};
  weight.kind = WeightKind::kFloating;
  weight.dtype = dtype_of(x.tensor);
  weight.data = x.tensor.const_data_ptr();
  weight.rows = x.count;
  weight.columns = x.size;
  weight.stride = x.stride;
  MatmulArgs args = product(a, grad.size, weight, true, y);
  args.add = add;
  args.in_tiles = true;
  run(args);
}

}  // namespace fusewheel
