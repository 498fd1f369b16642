// The experts of a mixture: gate, up, activation, down, weighted sum

#include <fusewheel/experts/experts.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

constexpr int64_t kActivations = 3;  // silu, gelu, gelu's approximation by tanh

void check_layer(const char* op, const char* name, const CheckedGroups& own, int64_t experts,
                 int64_t rows, int64_t columns, const char* what) {
  if (own.count != experts || own.rows != rows || own.columns != columns) {
    const int64_t expected[] = {experts, rows, columns};
    const int64_t got[] = {own.count, own.rows, own.columns};
    fail(op, std::string(name) + " must have shape " + describe({expected, 3}) + " (" + what +
                 "), got " + describe({got, 3}));
  }
}

void check_shapes(const char* op, const Tensor& x, const Tensor& indices, const Tensor& weights,
                  const CheckedGroups& gate_up, const CheckedGroups& down) {
  const auto of_indices = indices.sizes();
  const int64_t tokens = x.sizes()[0];
  const int64_t features = x.sizes()[1];
  const ScalarType dtype = indices.scalar_type();
  if (dtype != ScalarType::Int && dtype != ScalarType::Long) {
    fail(op, std::string("indices must be int32 or int64, got ") + describe(dtype));
  }
  if (of_indices.size() != 2 || of_indices[0] != tokens) {
    fail(op, "indices must have shape [" + std::to_string(tokens) +
                 ", k] (the tokens of x), got " + describe(of_indices));
  }
  check_sizes(op, {"weights", weights}, of_indices, "that of indices");
  check_layer(op, "gate_up", gate_up, gate_up.count, gate_up.rows, features,
              "experts, 2 * I, features");
  if (gate_up.rows % 2 != 0) {
    fail(op,
         "gate_up must have an even number of out features, got " + std::to_string(gate_up.rows));
  }
  check_layer(op, "down", down, gate_up.count, features, gate_up.rows / 2, "experts, features, I");
}

Tensor experts(const Tensor& x, const Tensor& indices, const Tensor& weights, const Tensor& gate_up,
               int64_t gate_up_kind, const std::optional<Tensor>& gate_up_bias, const Tensor& down,
               int64_t down_kind, const std::optional<Tensor>& down_bias, int64_t activation) {
  constexpr const char* op = "experts";
  const Argument input{"x", x};
  check_floating(op, input);
  if (x.dim() != 2) {
    fail(op, "x must have shape [tokens, features], got " + describe(x.sizes()));
  }
  check_same_device(op, {"indices", indices}, input);
  check_same_device(op, {"weights", weights}, input);
  check_weight_dtype(op, {"weights", weights}, input);
  const Experts::Layer first(op, {"gate_up", gate_up}, gate_up_kind, "gate_up_bias", gate_up_bias,
                             input);
  const Experts::Layer last(op, {"down", down}, down_kind, "down_bias", down_bias, input);
  check_shapes(op, x, indices, weights, first.weight, last.weight);
  if (activation < 0 || activation >= kActivations) {
    fail(op, "activation must be from 0 to 2, got " + std::to_string(activation));
  }
  Experts call{x, indices, weights, first, last, activation,
               empty_contiguous(x.sizes(), x.scalar_type(), x)};
  if (call.y.numel() > 0) {
    mix(op, call);
  }
  return call.y;
}

FUSEWHEEL_KERNELS(library) { kernel<experts>(library, "experts"); }

}  // namespace
}  // namespace fusewheel
