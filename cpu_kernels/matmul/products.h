// The products of matmul.h for tensors, on all threads.
#pragma once

#include <fusewheel/linear/linear.h>

namespace fusewheel {

// Whether ATen multiplies matrices of this dtype as fast as this processor can.
bool is_fast_in_aten(ScalarType dtype);

// x [rows] @ weight^T + bias -> y. With a `group_size` above 0, x is rounded to int8 by groups of that
// many (float64 never is): kInt4Block for 4-bit codes.
void matmul(const RowMatrix& x, const LinearWeight& weight, const std::optional<Tensor>& bias,
            Tensor& y, int64_t group_size);

// grad [rows] @ weight -> y
void matmul_transposed(const RowMatrix& grad, const LinearWeight& weight, Tensor& y);

// grad^T [columns of grad, rows] @ x [rows, columns of x] -> y, or added to it. A copy of grad in
// the accumulation type goes into `memory` where there is some.
void matmul_gradient(const RowMatrix& grad, const RowMatrix& x, Tensor& y, bool add = false,
                     const std::optional<Tensor>& memory = std::nullopt);

}  // namespace fusewheel
