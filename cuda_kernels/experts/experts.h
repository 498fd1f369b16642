// What the kernels of experts are given, and the functions that launch them.
#pragma once

#include <fusewheel/experts/groups.h>

namespace fusewheel {

// The experts of each token.
struct ExpertChoice {
  const void* indices;  // [tokens, k], contiguous
  bool is_long;         // int64_t, else int32_t
  int64_t tokens;
  int64_t k;
  int64_t experts;  // how many there are
};

// One of the two layers: x to hidden, or hidden to y.
struct ExpertLayer {
  GroupWeights weights;
  int64_t rows;      // out features
  const void* bias;  // [experts, out features], contiguous, or null
  Dtype bias_dtype;
  const void* from;  // rows of what is multiplied
  int64_t stride;
  Dtype from_dtype;
};

// hidden = activation(gate) * up, for each pair of a token and an expert; numbers as x would hold them.
struct ExpertsFirstArgs {
  ExpertChoice choice;
  ExpertLayer layer;  // its rows are those of gate, then those of up
  int64_t activation;
  Dtype dtype;   // of x
  void* hidden;  // [pairs, half of the layer's rows], this far apart
  int64_t stride;
  Dtype hidden_dtype;  // x's or, for a last layer in blocks, that of sums
};

// y = the weighted sum over a token's pairs.
struct ExpertsLastArgs {
  ExpertChoice choice;
  ExpertLayer layer;
  const void* weights;  // [tokens, k]
  int64_t weights_stride;
  Dtype weights_dtype;
  void* y;  // contiguous
  Dtype dtype;
};

void experts_first_launch(const ExpertsFirstArgs&, Stream);
void experts_last_launch(const ExpertsLastArgs&, Stream);
// For weights in blocks; `from` by_vectors, in the dtype of sums.
void experts_first_blocks_launch(const ExpertsFirstArgs&, Stream);
void experts_last_blocks_launch(const ExpertsLastArgs&, Stream);

}  // namespace fusewheel
