// What the kernels of cross_entropy are given: plain data, no torch.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// With z the logits, capped where softcap > 0, and p = softmax(z), the loss of a row is
//
//     target_share * w[t] * (lse - z[t]) + class_share * sum(w * (lse - z)) + z_loss * lse^2
//
// and its derivative by z[c] is p[c] * (target_share * w[t] + class_share * sum(w) + 2 z_loss * lse)
// - class_share * w[c] - (c == t) * target_share * w[t].
struct CrossEntropyArgs {
  const void* logits;
  const int64_t* target;
  const void* weight;  // w; null where every class weighs 1
  void* loss;
  void* logsumexp;
  void* grad;            // null where it is not wanted; may be the logits themselves
  const void* row_grad;  // what a row's loss counts for in grad; null for 1
  int64_t count;
  int64_t classes;
  int64_t stride;  // between rows of logits
  int64_t ignore_index;
  double target_share;  // 1 - label_smoothing
  double class_share;   // label_smoothing / classes
  double z_loss;
  double softcap;
  Dtype dtype;
};

// grad[n, c] = row_grad[n] * unit_grad[n, c]
struct CrossEntropyBackwardArgs {
  const void* row_grad;
  const void* unit_grad;
  void* grad;
  int64_t count;
  int64_t classes;
  int64_t stride;
  Dtype dtype;
};

// Each kernel library has its own.
void cross_entropy_launch(const CrossEntropyArgs&, Stream);
void cross_entropy_backward_launch(const CrossEntropyBackwardArgs&, Stream);

}  // namespace fusewheel
