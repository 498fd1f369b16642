// Arguments of attention_decode, checked the same way for every backend.
#pragma once

#include <fusewheel/attention/attention_decode_args.h>
#include <fusewheel/rows.h>

#include <optional>
#include <string>

namespace fusewheel {

// How many heads of keys and values a task should take. A task of one head would read a little of each
// line of pages. But few keys are divided by heads, so that there is work for several threads.
inline int64_t heads_of_task(const DecodeArgs& args, bool paged) {
  constexpr int64_t kMany = 4 * kDecodePart;
  const bool many = paged || args.shape.batch * args.page_size >= kMany;
  return args.k.head < args.k.key && many ? args.shape.kv_heads : 1;
}

// A checked call; owns the tensors its arguments point into.
struct AttentionDecode {
  Tensor q;
  Tensor k;
  Tensor v;
  std::optional<Tensor> table;
  std::optional<Tensor> sinks;
  Tensor out;
  Tensor logsumexp;
  DecodeArgs args;

  AttentionDecode(const char* op, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                  const Tensor& lengths, const std::optional<Tensor>& block_table,
                  const std::optional<Tensor>& k_scales, const std::optional<Tensor>& v_scales,
                  const std::optional<Tensor>& sinks, int64_t left, double scale, double softcap)
      : args{} {
    const bool paged = block_table.has_value();
    check_queries(op, q);
    check_caches(op, q, k_cache, v_cache, paged);
    check_lengths(op, q, lengths);
    if (paged) {
      check_table(op, q, k_cache, *block_table);
    }
    check_scales(op, "k_scales", k_scales, q, {"k_cache", k_cache});
    check_scales(op, "v_scales", v_scales, q, {"v_cache", v_cache});
    if (sinks.has_value()) {
      check_matches(op, {"sinks", *sinks}, {"q", q});
      check_sizes(op, {"sinks", *sinks}, {&q.sizes()[1], 1}, "the heads of q");
    }
    check_options(op, left, softcap);
    use(q, k_cache, v_cache, block_table, sinks);
    const bool is_int8 = k.scalar_type() == ScalarType::Char;
    if (is_int8) {
      args.k_scales = cache_of(*k_scales, paged);
      args.v_scales = cache_of(*v_scales, paged);
    }
    const auto sizes = q.sizes();
    args.shape = {sizes[0],
                  sizes[1],
                  k.sizes()[paged ? 2 : 1],
                  sizes[2],
                  sizes[3],
                  v.sizes()[3],
                  left,
                  scale,
                  softcap,
                  dtype_of(q),
                  dtype_of(k),
                  is_int8,
                  1};
    args.shape.task_heads = heads_of_task(args, paged);
  }

  void allocate() {
    const auto& shape = args.shape;
    const int64_t results[] = {shape.batch, shape.heads, shape.queries, shape.value_size};
    out = empty_contiguous({results, 4}, q.scalar_type(), q);
    logsumexp = empty_contiguous({results, 3}, accumulate_type(q), q);
    args.out = out.mutable_data_ptr();
    args.logsumexp = logsumexp.mutable_data_ptr();
  }

 private:
  static void check_queries(const char* op, const Tensor& q) {
    check_floating(op, {"q", q});
    if (q.dim() != 4) {
      fail(op, "q must have shape [batch, heads, queries, head size], got " + describe(q.sizes()));
    }
  }

  static void check_caches(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                           bool paged) {
    check_cache_dtype(op, {"k_cache", k}, {"q", q});
    check_cache_shape(op, {"k_cache", k}, paged);
    check_matches(op, {"v_cache", v}, {"k_cache", k});
    check_cache_shape(op, {"v_cache", v}, paged);
    const auto sizes = k.sizes();
    const int64_t heads = q.sizes()[1];
    const int64_t kv_heads = sizes[paged ? 2 : 1];
    if (kv_heads == 0 || heads == 0 || heads % kv_heads != 0) {
      fail(op, "k_cache must have a number of heads that divides that of q, " +
                   std::to_string(heads) + ", got shape " + describe(sizes));
    }
    const int64_t batch = paged ? sizes[0] : q.sizes()[0];
    const int64_t key[] = {batch, sizes[1], sizes[2], q.sizes()[3]};
    check_sizes(op, {"k_cache", k}, {key, 4},
                paged ? "head size is that of q" : "batch and head size are those of q");
    const int64_t value[] = {sizes[0], sizes[1], sizes[2], v.sizes()[3]};
    check_sizes(op, {"v_cache", v}, {value, 4}, "all but the head size are those of k_cache");
  }

  static void check_cache_dtype(const char* op, Argument cache, Argument q) {
    if (!cache.tensor.defined()) {
      fail(op, std::string(cache.name) + " must be a tensor, got None");
    }
    const auto dtype = cache.tensor.scalar_type();
    const bool wide = dtype == ScalarType::Double;
    if (dtype != ScalarType::Char && dtype != ScalarType::Float && dtype != ScalarType::BFloat16 &&
        dtype != ScalarType::Half && !wide) {
      fail(op, std::string(cache.name) +
                   " must be float32, bfloat16, float16, float64 or int8, got " + describe(dtype));
    }
    if (dtype != ScalarType::Char && wide != (q.tensor.scalar_type() == ScalarType::Double)) {
      fail(op, std::string(cache.name) + " must be float64 or int8 where q is float64, and not " +
                   "float64 elsewhere, got " + describe(dtype) + " and q in " +
                   describe(q.tensor.scalar_type()));
    }
    check_device(op, cache, q.tensor);
  }

  static void check_cache_shape(const char* op, Argument cache, bool paged) {
    if (cache.tensor.dim() != 4) {
      fail(op, std::string(cache.name) + " must have shape " +
                   (paged ? "[pages, page size, kv heads, head size]"
                          : "[batch, kv heads, capacity, head size]") +
                   ", got " + describe(cache.tensor.sizes()));
    }
  }

  static void check_device(const char* op, Argument argument, const Tensor& q) {
    if (argument.tensor.device() != q.device()) {
      fail(op, std::string(argument.name) + " must be on the device of q, " + describe_device(q) +
                   ", got " + describe_device(argument.tensor));
    }
  }

  static void check_lengths(const char* op, const Tensor& q, const Tensor& lengths) {
    if (!lengths.defined()) {
      fail(op, "lengths must be a tensor, got None");
    }
    const auto dtype = lengths.scalar_type();
    if (dtype != ScalarType::Int && dtype != ScalarType::Long) {
      fail(op, std::string("lengths must be int32 or int64, got ") + describe(dtype));
    }
    check_device(op, {"lengths", lengths}, q);
    check_sizes(op, {"lengths", lengths}, {&q.sizes()[0], 1}, "the batch of q");
  }

  static void check_table(const char* op, const Tensor& q, const Tensor& k, const Tensor& table) {
    if (table.scalar_type() != ScalarType::Int) {
      fail(op, std::string("block_table must be int32, got ") + describe(table.scalar_type()));
    }
    check_device(op, {"block_table", table}, q);
    if (table.dim() != 2) {
      fail(op, "block_table must have shape [batch, pages of a sequence], got " +
                   describe(table.sizes()));
    }
    const int64_t expected[] = {q.sizes()[0], table.sizes()[1]};
    check_sizes(op, {"block_table", table}, {expected, 2}, "the batch of q");
    if (k.sizes()[0] == 0) {
      fail(op, "k_cache must have at least one page, got shape " + describe(k.sizes()));
    }
  }

  static void check_scales(const char* op, const char* name, const std::optional<Tensor>& scales,
                           const Tensor& q, Argument cache) {
    const bool wanted = cache.tensor.scalar_type() == ScalarType::Char;
    if (scales.has_value() != wanted) {
      fail(op, std::string(name) + " must be " +
                   (wanted ? "given where " : "None where ") + cache.name +
                   (wanted ? " is int8" : " is not int8"));
    }
    if (!wanted) {
      return;
    }
    const auto expected = accumulate_type(q);
    if (scales->scalar_type() != expected) {
      fail(op, std::string(name) + " must be " + describe(expected) + " where q is " +
                   describe(q.scalar_type()) + ", got " + describe(scales->scalar_type()));
    }
    check_device(op, {name, *scales}, q);
    check_sizes(op, {name, *scales}, leading_sizes(cache.tensor),
                "that of the cache without the head size");
  }

  static void check_options(const char* op, int64_t left, double softcap) {
    if (left < -1) {
      fail(op, "left must be a number of keys, or -1 for all of them, got " + std::to_string(left));
    }
    if (!(softcap >= 0)) {
      fail(op, "softcap must be positive, or 0 for none, got " + std::to_string(softcap));
    }
  }

  void use(const Tensor& given_q, const Tensor& k_cache, const Tensor& v_cache,
           const std::optional<Tensor>& block_table, const std::optional<Tensor>& given_sinks) {
    q = with_rows(given_q);
    k = with_rows(k_cache);
    v = with_rows(v_cache);
    args.q = q.const_data_ptr();
    for (int d = 0; d < 3; ++d) {
      args.q_strides[d] = q.strides()[d];
    }
    args.k = cache_of(k, block_table.has_value());
    args.v = cache_of(v, block_table.has_value());
    args.page_size = k.sizes()[block_table.has_value() ? 1 : 2];
    args.entries = 1;
    if (block_table.has_value()) {
      table = as_contiguous(*block_table);
      args.table = static_cast<const int32_t*>(table->const_data_ptr());
      args.entries = table->sizes()[1];
    }
    if (given_sinks.has_value()) {
      sinks = as_contiguous(*given_sinks);
      args.sinks = sinks->const_data_ptr();
    }
  }

  // The tensor itself where the elements of its rows are contiguous.
  static Tensor with_rows(const Tensor& tensor) {
    return tensor.strides()[3] == 1 || tensor.sizes()[3] <= 1 ? tensor : as_contiguous(tensor);
  }

  // Pages are [pages, page size, heads], a cache of sequences is [batch, heads, capacity].
  static Cache cache_of(const Tensor& tensor, bool paged) {
    const auto strides = tensor.strides();
    return {tensor.const_data_ptr(), strides[0], strides[paged ? 1 : 2], strides[paged ? 2 : 1]};
  }
};

}  // namespace fusewheel
