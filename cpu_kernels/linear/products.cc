// Every linear layer's products: those of matmul/, or ATen's in half types that the processor has
// instructions for, except for few rows and small weights. In float32 they are always those of matmul/,
// whose bits are the same for any number of threads, also where ATen is faster: gradients of few rows.

#include <fusewheel/aten.h>
#include <fusewheel/linear/products.h>

#include "matmul/products.h"

namespace fusewheel {
namespace {

// So few rows take as long as reading the weight does, which matmul/ does faster.
constexpr int64_t kFewRows = 4;

// With AVX512_BF16 the products of matmul/ are at least as fast as ATen's for weights of up to so many
// numbers. That was measured on an AMD EPYC (Zen 4): 576 x 1536 was faster, 2048 x 2048 was alike.
constexpr int64_t kSmallWeight = int64_t{1} << 21;

// With up to a few dozen rows they are faster for weights of any size, and about as fast as ATen's with 128;
// with fewer than 8 only where the rows of the weight are whole pairs, which need not be packed. The gradient
// of x is faster with 16 to 64 rows, but not for small weights. That was measured there too, from 1024 x 4096
// to 4096 x 11008.
constexpr int64_t kFewestPackedRows = 8;
constexpr int64_t kMostOwnRows = 128;
constexpr int64_t kFewestOwnGradients = 16;
constexpr int64_t kMostOwnGradients = 64;

// A view costs a microsecond, so a matrix has none.
Tensor matrix_of(const Tensor& tensor, int64_t rows, int64_t columns) {
  return tensor.dim() == 2 ? tensor : torch::stable::view(tensor, {rows, columns});
}

Tensor matrix_of(const RowMatrix& rows) { return matrix_of(rows.tensor, rows.count, rows.size); }

bool is_fast_half(ScalarType dtype) {
  return (dtype == ScalarType::BFloat16 || dtype == ScalarType::Half) && is_fast_in_aten(dtype);
}

// Whether this processor multiplies bfloat16 by AVX512_BF16.
bool has_dot_products() { return choices().bf16 && !choices().amx; }

bool is_small(const LinearWeight& weight) { return weight.rows * weight.columns <= kSmallWeight; }

// Whether matmul/ is at least about as fast as ATen for a layer in this dtype, by AVX512_BF16.
bool is_own(const LinearWeight& weight, int64_t rows, ScalarType dtype) {
  const bool pairs = weight.columns % 2 == 0 && weight.stride % 2 == 0;
  return dtype == ScalarType::BFloat16 && has_dot_products() &&
         (is_small(weight) || (rows <= kMostOwnRows && (pairs || rows >= kFewestPackedRows)));
}

// The same of the gradient of x.
bool is_own_gradient(const LinearWeight& weight, int64_t rows, ScalarType dtype) {
  return dtype == ScalarType::BFloat16 && has_dot_products() && !is_small(weight) &&
         rows >= kFewestOwnGradients && rows <= kMostOwnGradients;
}

bool is_for_aten(const Linear& call) {
  const LinearWeight& weight = call.weight.weight;
  const ScalarType dtype = call.y.scalar_type();
  const bool same = weight.kind == WeightKind::kFloating && weight.dtype == dtype_of(call.y) &&
                    (!call.bias.has_value() || call.bias->scalar_type() == dtype);
  return same && is_fast_half(dtype) && call.x.count > kFewRows && call.x.size > 0 &&
         !is_own(weight, call.x.count, dtype);
}

// Gradients of a floating weight's layer in one dtype.
bool is_for_aten(const RowMatrix& grad, const Tensor& other, const Tensor& result) {
  const ScalarType dtype = grad.tensor.scalar_type();
  return is_fast_half(dtype) && other.scalar_type() == dtype && result.scalar_type() == dtype &&
         grad.count > 0 && grad.size > 0;
}

}  // namespace

void multiply(const char*, Linear& call, int64_t rounded_by) {
  if (is_for_aten(call)) {
    return aten_linear(matrix_of(call.x), call.weight.data, call.bias,
                       matrix_of(call.y, call.x.count, call.weight.weight.rows));
  }
  if (!WaitingProducts::take(call, rounded_by)) {
    matmul(call.x, call.weight.weight, call.bias, call.y, rounded_by);
  }
}

void multiply(const char*, LinearBackward& call) {
  const LinearWeight& weight = call.weight.weight;
  if (weight.kind == WeightKind::kFloating &&
      is_for_aten(call.grad, call.weight.data, call.grad_x) &&
      !is_own_gradient(weight, call.grad.count, call.grad_x.scalar_type())) {
    return aten_product(matrix_of(call.grad), call.weight.data,
                        matrix_of(call.grad_x, call.grad.count, weight.columns));
  }
  matmul_transposed(call.grad, weight, call.grad_x);
}

// Sums of float64 are in float64, be the weight narrower or not.
void multiply(const char*, LinearBackwardWeight& call) {
  if (is_for_aten(call.grad, call.x.tensor, call.grad_weight)) {
    return aten_product(transposed(matrix_of(call.grad)), matrix_of(call.x), call.grad_weight);
  }
  const ScalarType dtype = call.grad_weight.scalar_type();
  Tensor sums = call.grad_weight;
  if (call.x.tensor.scalar_type() == ScalarType::Double) {
    sums = empty_contiguous(sums.sizes(), ScalarType::Double, sums);
  }
  matmul_gradient(call.grad, call.x, sums);
  call.grad_weight = as_type(sums, dtype);
}

}  // namespace fusewheel
