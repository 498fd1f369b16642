// The products of linear layers, which each kernel library has its own way to compute
// (cpu_kernels/linear/products.cc, cuda_kernels/linear/products.cc).
#pragma once

#include <fusewheel/linear/linear.h>

namespace fusewheel {

// Fills call.y. With `rounded_by`, x is first rounded to int8 by groups of so many; float64 is not.
void multiply(const char* op, Linear& call, int64_t rounded_by = 0);

// Fills call.grad_x.
void multiply(const char* op, LinearBackward& call);

// Fills call.grad_weight.
void multiply(const char* op, LinearBackwardWeight& call);

}  // namespace fusewheel
