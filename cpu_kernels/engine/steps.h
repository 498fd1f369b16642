// Steps of programs that are no operators, called like kernels: arguments and results on a stack.
#pragma once

#include <torch/csrc/stable/c/shim.h>

namespace fusewheel::engine {

// (Tensor a, Tensor b) -> Tensor: the sum of floating numbers. The dispatcher's takes a Scalar.
void add_step(StableIValue* stack, uint64_t, uint64_t);

// (Tensor bias, Tensor a, Tensor b) -> Tensor: a @ b + bias. The dispatcher's takes two Scalars.
void addmm_step(StableIValue* stack, uint64_t, uint64_t);

// (Tensor q, Tensor k, Tensor v, float? scale) -> Tensor: attention of one query of each head to all
// keys, as `attention_decode` computes it. PyTorch's serves other numbers of queries, and no keys.
void attention_step(StableIValue* stack, uint64_t, uint64_t);

// (Tensor q, Tensor k, Tensor v, Tensor mask, float? scale) -> Tensor: the same with a mask, by PyTorch's.
void masked_attention_step(StableIValue* stack, uint64_t, uint64_t);

}  // namespace fusewheel::engine
