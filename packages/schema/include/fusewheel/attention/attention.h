// Arguments of attention, checked the same way for every backend.
#pragma once

#include <fusewheel/attention/attention_args.h>
#include <fusewheel/rows.h>

#include <array>
#include <optional>
#include <utility>

namespace fusewheel {

// Contiguous, but heads inside of positions where those of `like` are.
inline Tensor empty_heads(const std::array<int64_t, 4>& sizes, const Tensor& like) {
  const auto strides = like.strides();
  const IntHeaderOnlyArrayRef shape(sizes.data(), sizes.size());
  if (strides[1] >= strides[2]) {
    return empty_contiguous(shape, like.scalar_type(), like);
  }
  const auto extent = [&](int d) { return std::max<int64_t>(sizes[d], 1); };
  const int64_t position = extent(1) * extent(3);
  const int64_t own[] = {extent(2) * position, extent(3), position, 1};
  return empty_strided(shape, {own, 4}, like.scalar_type(), like);
}

inline View view_of(const Tensor& tensor) {
  const auto strides = tensor.strides();
  return {const_cast<void*>(tensor.const_data_ptr()),
          {strides[0], strides[1], strides[2], strides[3]}};
}

inline void check_dims(const char* op, Argument argument, int64_t dims, const char* shape) {
  if (argument.tensor.dim() != dims) {
    fail(op, std::string(argument.name) + " must have shape " + shape + ", got " +
                 describe(argument.tensor.sizes()));
  }
}

// Heads are dimension 1 of both.
inline void check_group(const char* op, const Tensor& q, const Tensor& k) {
  const int64_t heads = q.sizes()[1];
  const int64_t shared = k.sizes()[1];
  if (heads == 0 || shared == 0 || heads % shared != 0) {
    fail(op, "k must have a number of heads that divides that of q, " + std::to_string(heads) +
                 ", got shape " + describe(k.sizes()));
  }
}

inline void check_options(const char* op, int64_t left, int64_t right, double softcap) {
  for (const auto& [name, keys] : {std::pair("left", left), std::pair("right", right)}) {
    if (keys < -1) {
      fail(op, std::string(name) + " must be a number of keys, or -1 for all of them, got " +
                   std::to_string(keys));
    }
  }
  if (!(softcap >= 0)) {
    fail(op, "softcap must be positive, or 0 for none, got " + std::to_string(softcap));
  }
}

// A checked call; owns the tensors its arguments point into.
struct Attention {
  Tensor out;
  Tensor logsumexp;
  std::optional<Tensor> sinks;
  std::optional<Tensor> scratch;
  AttentionArgs args;

  Attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
            const std::optional<Tensor>& sinks, const std::optional<Tensor>& bias, int64_t left,
            int64_t right, double scale, double softcap)
      : args{} {
    check(op, q, k, v, sinks, bias, left, right, softcap);
    const auto sizes = q.sizes();
    // More than all keys is as good as all of them, and cannot overflow.
    const int64_t most = sizes[2] + k.sizes()[2];
    args.shape = {sizes[0],
                  sizes[1],
                  k.sizes()[1],
                  sizes[2],
                  k.sizes()[2],
                  sizes[3],
                  v.sizes()[3],
                  sizes[2],
                  std::min(left, most),
                  std::min(right, most),
                  scale,
                  softcap,
                  dtype_of(q),
                  bias.has_value() && bias->scalar_type() == ScalarType::Bool};
    args.q = view_of(q);
    args.k = view_of(k);
    args.v = view_of(v);
    if (sinks.has_value()) {
      this->sinks = as_contiguous(*sinks);
      args.sinks = {const_cast<void*>(this->sinks->const_data_ptr()), {0, 1, 0, 0}};
    }
    if (bias.has_value()) {
      args.bias = view_of(*bias);
      for (int d = 0; d < 4; ++d) {
        args.bias.strides[d] *= bias->sizes()[d] > 1;
      }
    }
  }

  void allocate(const Tensor& q) {
    const auto& shape = args.shape;
    out = empty_heads({shape.batch, shape.heads, shape.queries, shape.value_size}, q);
    logsumexp = empty_contiguous(leading_sizes(q), accumulate_type(q), q);
    args.out = view_of(out);
    args.logsumexp = logsumexp.mutable_data_ptr();
    const int64_t bytes = attention_scratch_bytes(shape);
    if (bytes > 0) {
      scratch = empty_contiguous({&bytes, 1}, ScalarType::Byte, q);
      args.scratch = scratch->mutable_data_ptr();
    }
  }

 private:
  static void check(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                    const std::optional<Tensor>& sinks, const std::optional<Tensor>& bias,
                    int64_t left, int64_t right, double softcap) {
    const Argument first{"q", q};
    check_floating(op, first);
    check_dims(op, first, 4, "[batch, heads, queries, head size]");
    check_matches(op, {"k", k}, first);
    check_dims(op, {"k", k}, 4, "[batch, heads, keys, head size]");
    check_matches(op, {"v", v}, first);
    check_dims(op, {"v", v}, 4, "[batch, heads, keys, head size of the result]");
    check_group(op, q, k);
    const auto sizes = q.sizes();
    const int64_t heads = k.sizes()[1];
    const int64_t key[] = {sizes[0], heads, k.sizes()[2], sizes[3]};
    check_sizes(op, {"k", k}, {key, 4}, "batch and head size are those of q");
    const int64_t value[] = {sizes[0], heads, k.sizes()[2], v.sizes()[3]};
    check_sizes(op, {"v", v}, {value, 4}, "batch, heads and keys are those of k");
    if (sinks.has_value()) {
      check_matches(op, {"sinks", *sinks}, first);
      check_sizes(op, {"sinks", *sinks}, {&sizes[1], 1}, "the heads of q");
    }
    if (bias.has_value()) {
      check_bias(op, *bias, first, {sizes[0], sizes[1], sizes[2], k.sizes()[2]});
    }
    check_options(op, left, right, softcap);
  }

  static void check_bias(const char* op, const Tensor& bias, Argument first,
                         const std::array<int64_t, 4>& scores) {
    if (bias.scalar_type() != ScalarType::Bool) {
      check_matches(op, {"bias", bias}, first);
    } else if (bias.device() != first.tensor.device()) {
      fail(op, std::string("bias must be on the device of ") + first.name + ", " +
                   describe_device(first.tensor) + ", got " + describe_device(bias));
    }
    bool fits = bias.dim() == 4;
    for (int d = 0; fits && d < 4; ++d) {
      fits = bias.sizes()[d] == 1 || bias.sizes()[d] == scores[d];
    }
    if (!fits) {
      fail(op, "bias must have the shape of the scores, " +
                   describe(IntHeaderOnlyArrayRef(scores.data(), 4)) +
                   ", with any of these sizes 1, got " + describe(bias.sizes()));
    }
  }
};

struct AttentionBackward {
  Attention forward;
  Tensor grad_q;
  Tensor grad_k;
  Tensor grad_v;
  Tensor grad_sinks;
  Tensor delta;
  std::optional<Tensor> dots;
  AttentionBackwardArgs args;

  AttentionBackward(const char* op, const Tensor& grad, const Tensor& grad_logsumexp,
                    const Tensor& q, const Tensor& k, const Tensor& v,
                    const std::optional<Tensor>& sinks, const std::optional<Tensor>& bias,
                    const Tensor& out, const Tensor& logsumexp, int64_t left, int64_t right,
                    double scale, double softcap)
      : forward(op, q, k, v, sinks, bias, left, right, scale, softcap), args{} {
    const auto& shape = forward.args.shape;
    const int64_t result[] = {shape.batch, shape.heads, shape.queries, shape.value_size};
    for (const Argument& argument : {Argument{"grad", grad}, Argument{"out", out}}) {
      check_matches(op, argument, {"q", q});
      check_sizes(op, argument, {result, 4}, "that of the result");
    }
    check_statistic(op, {"grad_logsumexp", grad_logsumexp}, q);
    check_statistic(op, {"logsumexp", logsumexp}, q);
    forward.out = out;
    forward.logsumexp = as_contiguous(logsumexp);
    forward.args.out = view_of(out);
    forward.args.logsumexp = const_cast<void*>(forward.logsumexp.const_data_ptr());
    grad_q = empty_heads({shape.batch, shape.heads, shape.queries, shape.size}, q);
    grad_k = empty_heads({shape.batch, shape.kv_heads, shape.keys, shape.size}, k);
    grad_v = empty_heads({shape.batch, shape.kv_heads, shape.keys, shape.value_size}, v);
    const int64_t heads = sinks.has_value() ? shape.heads : 0;
    grad_sinks = empty_contiguous({&heads, 1}, q.scalar_type(), q);
    delta = empty_contiguous(leading_sizes(q), accumulate_type(q), q);
    args.forward = forward.args;
    args.grad = view_of(grad);
    const auto strides = grad_logsumexp.strides();
    args.grad_logsumexp = {const_cast<void*>(grad_logsumexp.const_data_ptr()),
                           {strides[0], strides[1], strides[2], 0}};
    args.grad_q = view_of(grad_q);
    args.grad_k = view_of(grad_k);
    args.grad_v = view_of(grad_v);
    args.grad_sinks = sinks.has_value() ? grad_sinks.mutable_data_ptr() : nullptr;
    args.delta = delta.mutable_data_ptr();
    if (sinks.has_value()) {
      dots = empty_contiguous(leading_sizes(q), accumulate_type(q), q);
      args.dots = dots->mutable_data_ptr();
    }
  }
};

}  // namespace fusewheel
