// The one definition of every fusewheel operator. All kernel libraries link this library, so it is
// loaded once however many of them are imported (same SONAME); a copy that does get loaded twice
// finds the namespace taken and leaves it alone instead of ending the process.

#include <fusewheel/export.h>
#include <torch/csrc/stable/library.h>

#ifndef FUSEWHEEL_VERSION
#error "FUSEWHEEL_VERSION comes from CMake"
#endif

namespace {

constexpr const char* kSchemas[] = {
    "muladd(Tensor a, Tensor b, float c) -> Tensor",
    "mul(Tensor a, Tensor b) -> Tensor",
    "add_out(Tensor a, Tensor b, Tensor(a!) out) -> ()",
    "exp_add(Tensor x, float c) -> Tensor",
    "rms_norm(Tensor x, Tensor weight, float eps, int cast) -> (Tensor y, Tensor rstd)",
    "rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, int cast)"
    " -> (Tensor grad_x, Tensor grad_weight)",
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, int cast)"
    " -> (Tensor y, Tensor sum, Tensor rstd)",
    "add_rms_norm_backward(Tensor grad, Tensor grad_sum, Tensor sum, Tensor weight, Tensor rstd,"
    " int cast) -> (Tensor grad_sum_total, Tensor grad_weight)",
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor y, Tensor mean, Tensor rstd)",
    "layer_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor mean, Tensor rstd,"
    " bool parameters) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)",
    "add_layer_norm_backward(Tensor grad, Tensor grad_sum, Tensor sum, Tensor? weight, Tensor mean,"
    " Tensor rstd, bool parameters)"
    " -> (Tensor grad_sum_total, Tensor grad_weight, Tensor grad_bias)",
    "silu_mul(Tensor gate, Tensor up) -> Tensor",
    "silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor grad_gate, Tensor grad_up)",
    "silu_mul_packed(Tensor gate_up) -> Tensor",
    "silu_mul_packed_backward(Tensor grad, Tensor gate_up) -> Tensor",
    "gelu(Tensor x, bool tanh) -> Tensor",
    "gelu_backward(Tensor grad, Tensor x, bool tanh) -> Tensor",
    "gelu_mul(Tensor gate, Tensor up, bool tanh) -> Tensor",
    "gelu_mul_backward(Tensor grad, Tensor gate, Tensor up, bool tanh)"
    " -> (Tensor grad_gate, Tensor grad_up)",
    "gelu_mul_packed(Tensor gate_up, bool tanh) -> Tensor",
    "gelu_mul_packed_backward(Tensor grad, Tensor gate_up, bool tanh) -> Tensor",
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, int ignore_index,"
    " float label_smoothing, float z_loss, float softcap, bool needs_grad, Tensor? grad=None)"
    " -> (Tensor loss, Tensor logsumexp, Tensor grad_logits)",
    "cross_entropy_backward(Tensor grad, Tensor grad_logits) -> Tensor",
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor target, Tensor? bias,"
    " Tensor? class_weight, int ignore_index, float label_smoothing, float z_loss, float softcap,"
    " bool summed, bool needs_x, bool needs_weight, bool needs_bias)"
    " -> (Tensor loss, Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
    "linear_cross_entropy_backward(Tensor grad, Tensor x, Tensor weight, Tensor target,"
    " Tensor? bias, Tensor? class_weight, int ignore_index, float label_smoothing, float z_loss,"
    " float softcap, bool needs_x, bool needs_weight, bool needs_bias)"
    " -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
    "rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved, Tensor? positions=None)"
    " -> (Tensor q_out, Tensor k_out)",
    "rope_backward(Tensor grad_q, Tensor grad_k, Tensor cos, Tensor sin, bool interleaved,"
    " Tensor? positions=None) -> (Tensor q, Tensor k)",
    "rope_(Tensor(a!) x, Tensor cos, Tensor sin, bool interleaved, Tensor? positions=None) -> ()",
    "merge_attention(Tensor out, Tensor logsumexp, Tensor other, Tensor other_logsumexp)"
    " -> (Tensor merged, Tensor merged_logsumexp)",
    "merge_attention_backward(Tensor grad_merged, Tensor grad_merged_logsumexp, Tensor out,"
    " Tensor logsumexp, Tensor other, Tensor other_logsumexp) -> (Tensor grad_out,"
    " Tensor grad_logsumexp, Tensor grad_other, Tensor grad_other_logsumexp)",
    "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? bias, int left, int right,"
    " float scale, float softcap) -> (Tensor out, Tensor logsumexp)",
    "attention_backward(Tensor grad, Tensor grad_logsumexp, Tensor q, Tensor k, Tensor v,"
    " Tensor? sinks, Tensor? bias, Tensor out, Tensor logsumexp, int left, int right, float scale,"
    " float softcap) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_sinks)",
    "attention_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor lengths,"
    " Tensor? block_table, Tensor? k_scales, Tensor? v_scales, Tensor? sinks, int left,"
    " float scale, float softcap) -> (Tensor out, Tensor logsumexp)",
    "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k,"
    " Tensor? sinks, int left, int right, float scale, float softcap)"
    " -> (Tensor out, Tensor logsumexp)",
    "attention_varlen_backward(Tensor grad, Tensor grad_logsumexp, Tensor q, Tensor k, Tensor v,"
    " Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? sinks, Tensor out, Tensor logsumexp,"
    " int left, int right, float scale, float softcap)"
    " -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_sinks)",
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    "linear_backward_x(Tensor grad, Tensor weight) -> Tensor",
    "linear_backward_weight(Tensor grad, Tensor x, Tensor weight) -> Tensor",
    "linear_int8(Tensor x, Tensor qweight, Tensor scales, Tensor? bias, bool dynamic) -> Tensor",
    "linear_int8_backward(Tensor grad, Tensor qweight, Tensor scales) -> Tensor",
    "linear_int4(Tensor x, Tensor qweight, Tensor scales, Tensor zeros, int group_size,"
    " Tensor? bias, bool dynamic) -> Tensor",
    "linear_int4_backward(Tensor grad, Tensor qweight, Tensor scales, Tensor zeros, int group_size)"
    " -> Tensor",
    "linear_blocks(Tensor x, Tensor blocks, int kind, Tensor? bias) -> Tensor",
    "linear_blocks_backward(Tensor grad, Tensor blocks, int kind) -> Tensor",
    "grouped_linear(Tensor x, Tensor weight, Tensor ends, Tensor? bias) -> Tensor",
    "grouped_linear_backward_x(Tensor grad, Tensor weight, Tensor ends) -> Tensor",
    "grouped_linear_backward_weight(Tensor grad, Tensor x, Tensor weight, Tensor ends) -> Tensor",
    "grouped_linear_blocks(Tensor x, Tensor blocks, int kind, Tensor ends, Tensor? bias) -> Tensor",
    "grouped_linear_blocks_backward(Tensor grad, Tensor blocks, int kind, Tensor ends) -> Tensor",
    "route(Tensor logits, int k, Tensor? bias, bool sigmoid, int groups, int chosen_groups,"
    " int group_best, bool normalize, float scale) -> (Tensor weights, Tensor indices)",
    "experts(Tensor x, Tensor indices, Tensor weights, Tensor gate_up, int gate_up_kind,"
    " Tensor? gate_up_bias, Tensor down, int down_kind, Tensor? down_bias, int activation) -> Tensor",
    "bind(Tensor program, Tensor[] weights) -> Tensor",
    "run(Tensor program, Tensor[] inputs, int[] outputs) -> Tensor[]",
};

// STABLE_TORCH_LIBRARY ignores the error of a second definition and then uses an uninitialised
// handle; hence the C interface.
class Definition {
 public:
  Definition() {
    if (aoti_torch_library_init_def("fusewheel", "schema.cpp", __LINE__, &library_) !=
        AOTI_TORCH_SUCCESS) {
      library_ = nullptr;
      return;
    }
    for (const char* schema : kSchemas) {
      aoti_torch_library_def(library_, schema);
    }
  }

  ~Definition() {
    if (library_ != nullptr) {
      aoti_torch_delete_library_object(library_);
    }
  }

  Definition(const Definition&) = delete;
  Definition& operator=(const Definition&) = delete;

 private:
  TorchLibraryHandle library_ = nullptr;
};

const Definition definition;

}  // namespace

FUSEWHEEL_EXPORT const char* fusewheel_schema_version() {
  return FUSEWHEEL_VERSION;
}
