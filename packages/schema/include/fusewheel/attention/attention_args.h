// What the kernels of attention are given: plain data, no torch.
//
// With s = scale * dot(q, k), capped where softcap > 0, plus the bias, the logsumexp of a query is that
// of the s of all keys that it sees, and of the sink of its head; out = sum(exp(s - logsumexp) * v).
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// A tensor [batch, heads, rows, elements of a row]; strides count elements.
struct View {
  void* data;  // null where there is no such tensor
  int64_t strides[4];
};

struct AttentionShape {
  int64_t batch;
  int64_t heads;
  int64_t kv_heads;
  int64_t queries;
  int64_t keys;
  int64_t size;        // of a query and of a key
  int64_t value_size;  // of a value and of a result
  // From one head to the next in logsumexp and the like: the queries of all sequences that are packed
  // together. `queries` if there is one.
  int64_t all_queries;
  // Query i stands at key i + keys - queries. It sees so many keys left and right of that one; -1 for
  // all of them.
  int64_t left;
  int64_t right;
  double scale;
  double softcap;
  Dtype dtype;
  bool is_mask;  // the bias is of bool: keys where it is false are not seen
};

struct AttentionArgs {
  AttentionShape shape;
  View q;
  View k;
  View v;
  View sinks;  // [1, heads, 1, 1]
  View bias;   // strides of 0 where it is repeated
  View out;
  void* logsumexp;  // [batch, heads, queries]
  void* scratch;    // attention_scratch_bytes(shape) of them, on the device
};

// p = exp(s - logsumexp); the gradient of s is p * (dot(grad, v) - delta).
struct AttentionBackwardArgs {
  AttentionArgs forward;
  View grad;
  View grad_logsumexp;  // [batch, heads, queries, 1]
  View grad_q;
  View grad_k;
  View grad_v;
  void* grad_sinks;  // [heads], null where there are no sinks
  void* delta;       // [batch, heads, queries]: dot(grad, out) - grad_logsumexp
  void* dots;        // likewise: of the shares of the keys and their gradients; null without sinks
};

// Each kernel library has its own.
int64_t attention_scratch_bytes(const AttentionShape&);
void attention_launch(const AttentionArgs&, Stream);
void attention_backward_launch(const AttentionBackwardArgs&, Stream);

}  // namespace fusewheel
