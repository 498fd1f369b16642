#include "steps.h"

#include <fusewheel/kernel.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include <cmath>
#include <cstring>

#include "handles.h"

namespace fusewheel::engine {

namespace {

using torch::stable::detail::to;

const DirectKernel& kernel_named(const char* name) {
  for (auto kernel = direct_kernels(); kernel != nullptr; kernel = kernel->next) {
    if (std::strcmp(kernel->name, name) == 0) {
      return *kernel;
    }
  }
  throw std::runtime_error(std::string("run: there is no kernel ") + name);
}

const int64_t* sizes_of(const Handle& tensor) {
  int64_t* sizes = nullptr;
  int64_t rank = 0;
  check(aoti_torch_get_dim(tensor.get(), &rank), "reading dimensions");
  check(aoti_torch_get_sizes(tensor.get(), &sizes), "reading sizes");
  if (rank != 4) {
    throw std::runtime_error("attention: queries, keys and values must have 4 dimensions, got " +
                             std::to_string(rank));
  }
  return sizes;
}

// The number of keys, for each sequence of the batch.
Handle lengths_of(const int64_t* k) {
  const int64_t one = 1;
  AtenTensorHandle made = nullptr;
  check(aoti_torch_empty_strided(1, k, &one, aoti_torch_dtype_int64(),
                                 aoti_torch_device_type_cpu(), 0, &made),
        "allocating lengths");
  Handle lengths(made);
  void* numbers = nullptr;
  check(torch_get_mutable_data_ptr(lengths.get(), &numbers), "writing lengths");
  for (int64_t i = 0; i < k[0]; ++i) {
    static_cast<int64_t*>(numbers)[i] = k[2];
  }
  return lengths;
}

// PyTorch's attention; the mask may be none.
StableIValue call_torch(Handle& q, Handle& k, Handle& v, Handle mask, std::optional<double> scale) {
  const bool grouped = sizes_of(q)[1] != sizes_of(k)[1];
  // torch deletes what an optional argument points to.
  const StableIValue shown = mask ? pack(new StableIValue(pack(mask.release()))) : pack(std::nullopt);
  StableIValue given[] = {pack(q.release()), pack(k.release()), pack(v.release()), shown,
                          pack(0.0),         pack(false),       pack(scale),       pack(grouped)};
  check(torch_call_dispatcher("aten::scaled_dot_product_attention", "", given, TORCH_ABI_VERSION),
        "attention");
  return given[0];
}

}  // namespace

void add_step(StableIValue* stack, uint64_t, uint64_t) {
  const Handle a(to<AtenTensorHandle>(stack[0]));
  const Handle b(to<AtenTensorHandle>(stack[1]));
  AtenTensorHandle sum = nullptr;
  check(aoti_torch_cpu_add_Tensor(a.get(), b.get(), 1.0, &sum), "an addition");
  stack[0] = pack(sum);
}

void addmm_step(StableIValue* stack, uint64_t, uint64_t) {
  const Handle bias(to<AtenTensorHandle>(stack[0]));
  const Handle a(to<AtenTensorHandle>(stack[1]));
  const Handle b(to<AtenTensorHandle>(stack[2]));
  int32_t dtype = 0;
  check(aoti_torch_get_dtype(bias.get(), &dtype), "reading a dtype");
  const int64_t none = 0;
  const int64_t one = 1;
  AtenTensorHandle made = nullptr;
  check(aoti_torch_empty_strided(1, &none, &one, dtype, aoti_torch_device_type_cpu(), 0, &made),
        "allocating a product");
  Handle product(made);
  check(aoti_torch_cpu_addmm_out(product.get(), bias.get(), a.get(), b.get(), 1.0, 1.0),
        "a product");
  stack[0] = pack(product.release());
}

void attention_step(StableIValue* stack, uint64_t, uint64_t) {
  Handle q(to<AtenTensorHandle>(stack[0]));
  Handle k(to<AtenTensorHandle>(stack[1]));
  Handle v(to<AtenTensorHandle>(stack[2]));
  const auto scale = to<std::optional<double>>(stack[3]);
  const int64_t* query = sizes_of(q);
  const int64_t* key = sizes_of(k);
  sizes_of(v);
  const StableIValue none = pack(std::nullopt);
  StableIValue given[11];
  if (query[2] == 1 && key[2] > 0) {
    const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(query[3])));
    Handle lengths = lengths_of(key);
    const StableIValue arguments[] = {
        pack(q.release()), pack(k.release()), pack(v.release()),   pack(lengths.release()),
        none,              none,              none,                none,
        pack(int64_t{-1}), pack(factor),      pack(0.0)};
    std::memcpy(given, arguments, sizeof(arguments));
    static const DirectKernel& decode = kernel_named("attention_decode");
    decode.call(given, 11, 2);
    stack[0] = given[0];
    aoti_torch_delete_tensor_object(to<AtenTensorHandle>(given[1]));  // the logsumexp
    return;
  }
  stack[0] = call_torch(q, k, v, Handle(), scale);
}

void masked_attention_step(StableIValue* stack, uint64_t, uint64_t) {
  Handle q(to<AtenTensorHandle>(stack[0]));
  Handle k(to<AtenTensorHandle>(stack[1]));
  Handle v(to<AtenTensorHandle>(stack[2]));
  Handle mask(to<AtenTensorHandle>(stack[3]));
  stack[0] = call_torch(q, k, v, std::move(mask), to<std::optional<double>>(stack[4]));
}

}  // namespace fusewheel::engine
