// Steps of programs that are no operators, called like kernels: arguments and results on a stack.
#pragma once

#include <torch/csrc/stable/c/shim.h>

namespace fusewheel::engine {

// (Tensor a, Tensor b) -> Tensor: the sum of floating numbers. The dispatcher's takes a Scalar.
void add_step(StableIValue* stack, uint64_t, uint64_t);

// (Tensor bias, Tensor a, Tensor b) -> Tensor: a @ b + bias. The dispatcher's takes two Scalars.
void addmm_step(StableIValue* stack, uint64_t, uint64_t);

// (Tensor q, Tensor k, Tensor v, float? scale) -> Tensor: attention of one query of each head to all
// keys, by whichever of fusewheel's and PyTorch's kernels is faster for the sizes that came.
void attention_step(StableIValue* stack, uint64_t, uint64_t);

// Whether fusewheel's kernel is the faster one, for the sizes of queries and of keys.
bool reads_faster(int32_t dtype, const int64_t* q, const int64_t* k);

}  // namespace fusewheel::engine
