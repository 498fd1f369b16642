// Arguments of add_layer_norm, checked the same way for every backend.
#pragma once

#include <fusewheel/norm/add_layer_norm_args.h>
#include <fusewheel/norm/add_rows.h>
#include <fusewheel/norm/layer_norm.h>

namespace fusewheel {

// A checked call; owns the tensors its arguments point into.
struct AddLayerNorm {
  AddRows add;
  LayerNorm norm;
  AddLayerNormArgs args;

  AddLayerNorm(const char* op, const Tensor& x, const Tensor& residual,
               const OptionalTensor& weight, const OptionalTensor& bias, double eps)
      : add(op, {"x", x}, {"residual", residual}),
        norm(op, {"x", add.sum}, weight, bias, eps),
        args{add.args, norm.args} {}
};

struct AddLayerNormBackward {
  LayerNormBackward norm;
  AddRowsBackward add;
  AddLayerNormBackwardArgs args;

  AddLayerNormBackward(const char* op, const Tensor& grad, const Tensor& grad_sum,
                       const Tensor& sum, const OptionalTensor& weight, const Tensor& mean,
                       const Tensor& rstd, bool parameters)
      : norm(op, grad, {"sum", sum}, weight, mean, rstd, parameters),
        add(op, {"grad_sum", grad_sum}, {"sum", sum}),
        args{add.args, norm.args} {}
};

}  // namespace fusewheel
