// Arguments of attention_varlen, checked the same way for every backend.
#pragma once

#include <fusewheel/attention/attention.h>
#include <fusewheel/attention/attention_varlen_args.h>

#include <vector>

namespace fusewheel {

// A tensor [tokens, heads, elements] as [1, heads, tokens, elements].
inline View packed_view_of(const Tensor& tensor) {
  const auto strides = tensor.strides();
  return {const_cast<void*>(tensor.const_data_ptr()), {0, strides[1], strides[0], strides[2]}};
}

// A tensor [heads, tokens] as [1, heads, tokens, 1].
inline View packed_values_of(const Tensor& tensor) {
  const auto strides = tensor.strides();
  return {const_cast<void*>(tensor.const_data_ptr()), {0, strides[0], strides[1], 0}};
}

// A checked call; owns the tensors its arguments point into.
struct AttentionVarlen {
  Tensor out;
  Tensor logsumexp;
  std::optional<Tensor> sinks;
  std::vector<Sequence> sequences;
  std::optional<Tensor> scratch;
  std::optional<Tensor> packing_scratch;
  AttentionVarlenArgs args;

  AttentionVarlen(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                  const std::optional<Tensor>& sinks, int64_t left, int64_t right, double scale,
                  double softcap)
      : args{} {
    check(op, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, left, right, softcap);
    const auto sizes = q.sizes();
    const int64_t keys = k.sizes()[0];
    // More than all keys is as good as all of them, and cannot overflow.
    const int64_t most = sizes[0] + keys;
    args.all.shape = {1,
                      sizes[1],
                      k.sizes()[1],
                      sizes[0],
                      keys,
                      sizes[2],
                      v.sizes()[2],
                      sizes[0],
                      std::min(left, most),
                      std::min(right, most),
                      scale,
                      softcap,
                      dtype_of(q),
                      false};
    args.all.q = packed_view_of(q);
    args.all.k = packed_view_of(k);
    args.all.v = packed_view_of(v);
    if (sinks.has_value()) {
      this->sinks = as_contiguous(*sinks);
      args.all.sinks = {const_cast<void*>(this->sinks->const_data_ptr()), {0, 1, 0, 0}};
    }
    if (can_read_tensors()) {
      read_sequences(op, q, k, cu_seqlens_q, cu_seqlens_k);
    }
    const int64_t count = cu_seqlens_q.sizes()[0] - 1;
    args.packing = {count, sequences.data(), bounds_of(cu_seqlens_q), bounds_of(cu_seqlens_k),
                    allocate_bytes(packing_scratch, packing_scratch_bytes(count), q)};
  }

  void allocate(const Tensor& q) {
    const auto& shape = args.all.shape;
    const int64_t result[] = {shape.queries, shape.heads, shape.value_size};
    const int64_t rows[] = {shape.heads, shape.queries};
    out = empty_contiguous({result, 3}, q.scalar_type(), q);
    logsumexp = empty_contiguous({rows, 2}, accumulate_type(q), q);
    args.all.out = packed_view_of(out);
    args.all.logsumexp = logsumexp.mutable_data_ptr();
    args.all.scratch = allocate_bytes(scratch, attention_scratch_bytes(shape), q);
  }

 private:
  static void* allocate_bytes(std::optional<Tensor>& memory, int64_t bytes, const Tensor& like) {
    if (bytes == 0) {
      return nullptr;
    }
    memory = empty_contiguous({&bytes, 1}, ScalarType::Byte, like);
    return memory->mutable_data_ptr();
  }

  static Bounds bounds_of(const Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.strides()[0],
            tensor.scalar_type() == ScalarType::Long};
  }

  static void check(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                    const std::optional<Tensor>& sinks, int64_t left, int64_t right,
                    double softcap) {
    const Argument first{"q", q};
    check_floating(op, first);
    check_dims(op, first, 3, "[all queries, heads, head size]");
    check_matches(op, {"k", k}, first);
    check_dims(op, {"k", k}, 3, "[all keys, heads, head size]");
    check_matches(op, {"v", v}, first);
    check_dims(op, {"v", v}, 3, "[all keys, heads, head size of the result]");
    check_group(op, q, k);
    const int64_t key[] = {k.sizes()[0], k.sizes()[1], q.sizes()[2]};
    check_sizes(op, {"k", k}, {key, 3}, "the head size is that of q");
    const int64_t value[] = {key[0], key[1], v.sizes()[2]};
    check_sizes(op, {"v", v}, {value, 3}, "keys and heads are those of k");
    check_bounds(op, {"cu_seqlens_q", cu_seqlens_q}, first);
    check_bounds(op, {"cu_seqlens_k", cu_seqlens_k}, first);
    check_sizes(op, {"cu_seqlens_k", cu_seqlens_k}, cu_seqlens_q.sizes(), "that of cu_seqlens_q");
    if (sinks.has_value()) {
      check_matches(op, {"sinks", *sinks}, first);
      check_sizes(op, {"sinks", *sinks}, {&q.sizes()[1], 1}, "the heads of q");
    }
    check_options(op, left, right, softcap);
  }

  static void check_bounds(const char* op, Argument bounds, Argument first) {
    const std::string name = bounds.name;
    const auto& tensor = bounds.tensor;
    if (!tensor.defined()) {
      fail(op, name + " must be a tensor, got None");
    }
    if (tensor.scalar_type() != ScalarType::Int && tensor.scalar_type() != ScalarType::Long) {
      fail(op, name + " must be int32 or int64, got " + describe(tensor.scalar_type()));
    }
    if (tensor.device() != first.tensor.device()) {
      fail(op, name + " must be on the device of " + first.name + ", " +
                   describe_device(first.tensor) + ", got " + describe_device(tensor));
    }
    if (tensor.dim() != 1 || tensor.sizes()[0] == 0) {
      fail(op, name + " must have shape [sequences + 1], got " + describe(tensor.sizes()));
    }
  }

  void read_sequences(const char* op, const Tensor& q, const Tensor& k,
                      const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) {
    const auto queries_end = numbers_of(op, {"cu_seqlens_q", cu_seqlens_q}, {"q", q});
    const auto keys_end = numbers_of(op, {"cu_seqlens_k", cu_seqlens_k}, {"k", k});
    for (size_t i = 1; i < queries_end.size(); ++i) {
      const int64_t query = queries_end[i - 1];
      const int64_t key = keys_end[i - 1];
      sequences.push_back({query, queries_end[i] - query, key, keys_end[i] - key});
    }
  }

  // The numbers in bounds, which count the rows of a tensor.
  static std::vector<int64_t> numbers_of(const char* op, Argument bounds, Argument rows) {
    const auto& tensor = bounds.tensor;
    const std::string name = bounds.name;
    const bool is_long = tensor.scalar_type() == ScalarType::Long;
    const void* data = tensor.const_data_ptr();
    std::vector<int64_t> found(static_cast<size_t>(tensor.numel()));
    for (size_t i = 0; i < found.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) * tensor.strides()[0];
      found[i] = is_long ? static_cast<const int64_t*>(data)[at]
                         : static_cast<const int32_t*>(data)[at];
    }
    if (found[0] != 0) {
      fail(op, name + " must begin with 0, got " + std::to_string(found[0]));
    }
    for (size_t i = 1; i < found.size(); ++i) {
      if (found[i] < found[i - 1]) {
        fail(op, name + " must not fall, got " + std::to_string(found[i]) + " after " +
                     std::to_string(found[i - 1]));
      }
    }
    const int64_t all = rows.tensor.sizes()[0];
    if (found.back() != all) {
      fail(op, name + " must end with " + std::to_string(all) + ", the size of dimension 0 of " +
                   rows.name + ", got " + std::to_string(found.back()));
    }
    return found;
  }
};

struct AttentionVarlenBackward {
  AttentionVarlen forward;
  Tensor grad_q;
  Tensor grad_k;
  Tensor grad_v;
  Tensor grad_sinks;
  Tensor delta;
  std::optional<Tensor> dots;
  AttentionVarlenBackwardArgs args;

  AttentionVarlenBackward(const char* op, const Tensor& grad, const Tensor& grad_logsumexp,
                          const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                          const std::optional<Tensor>& sinks, const Tensor& out,
                          const Tensor& logsumexp, int64_t left, int64_t right, double scale,
                          double softcap)
      : forward(op, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, left, right, scale, softcap),
        args{} {
    const auto& shape = forward.args.all.shape;
    const int64_t result[] = {shape.queries, shape.heads, shape.value_size};
    for (const Argument& argument : {Argument{"grad", grad}, Argument{"out", out}}) {
      check_matches(op, argument, {"q", q});
      check_sizes(op, argument, {result, 3}, "that of the result");
    }
    check_values(op, {"grad_logsumexp", grad_logsumexp}, q);
    check_values(op, {"logsumexp", logsumexp}, q);
    const auto dtype = q.scalar_type();
    const auto wide = accumulate_type(q);
    const int64_t rows[] = {shape.heads, shape.queries};
    const int64_t heads = sinks.has_value() ? shape.heads : 0;
    forward.logsumexp = as_contiguous(logsumexp);
    forward.args.all.out = packed_view_of(out);
    forward.args.all.logsumexp = const_cast<void*>(forward.logsumexp.const_data_ptr());
    grad_q = empty_contiguous(q.sizes(), dtype, q);
    grad_k = empty_contiguous(k.sizes(), dtype, q);
    grad_v = empty_contiguous(v.sizes(), dtype, q);
    grad_sinks = empty_contiguous({&heads, 1}, dtype, q);
    delta = empty_contiguous({rows, 2}, wide, q);
    auto& all = args.all;
    all.forward = forward.args.all;
    all.grad = packed_view_of(grad);
    all.grad_logsumexp = packed_values_of(grad_logsumexp);
    all.grad_q = packed_view_of(grad_q);
    all.grad_k = packed_view_of(grad_k);
    all.grad_v = packed_view_of(grad_v);
    all.delta = delta.mutable_data_ptr();
    if (sinks.has_value()) {
      all.grad_sinks = grad_sinks.mutable_data_ptr();
      dots = empty_contiguous({rows, 2}, wide, q);
      all.dots = dots->mutable_data_ptr();
    }
    args.packing = forward.args.packing;
  }

 private:
  // One value for each head and query.
  static void check_values(const char* op, Argument values, const Tensor& q) {
    check_floating(op, values);
    const int64_t rows[] = {q.sizes()[1], q.sizes()[0]};
    check_sizes(op, values, {rows, 2}, "the heads and queries of q");
    const auto& tensor = values.tensor;
    if (tensor.scalar_type() != accumulate_type(q) || tensor.device() != q.device()) {
      fail(op, std::string(values.name) + " must be " + describe(accumulate_type(q)) + " on " +
                   describe_device(q) + ", got " + describe(tensor.scalar_type()) + " on " +
                   describe_device(tensor));
    }
  }
};

}  // namespace fusewheel
