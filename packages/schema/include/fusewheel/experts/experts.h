// A checked call of experts, the same for every backend.
#pragma once

#include <fusewheel/experts/grouped_linear.h>

namespace fusewheel {

struct Experts {
  // The linear layers of all experts. Kind 0 is that of floating weights.
  struct Layer {
    CheckedGroups weight;
    std::optional<Tensor> bias;  // contiguous

    Layer(const char* op, Argument given, int64_t kind, const char* bias_name,
          const std::optional<Tensor>& given_bias, Argument x)
        : weight(kind == 0 ? CheckedGroups::floating(op, given, x)
                           : CheckedGroups::stored_blocks(op, given, kind, x)) {
      if (!given_bias.has_value()) {
        return;
      }
      const Argument argument{bias_name, *given_bias};
      check_same_device(op, argument, x);
      check_weight_dtype(op, argument, x);
      const int64_t sizes[] = {weight.count, weight.rows};
      check_sizes(op, argument, {sizes, 2}, "experts, out features");
      bias = as_contiguous(*given_bias);
    }

    bool is_floating() const { return weight.weights.first.kind == WeightKind::kFloating; }
  };

  Tensor x;
  Tensor indices;
  Tensor weights;
  Layer first;  // gate, then up
  Layer last;   // down
  int64_t activation;
  Tensor y;
};

// Each kernel library has its own way to compute y, which has elements.
void mix(const char* op, Experts& call);

}  // namespace fusewheel
