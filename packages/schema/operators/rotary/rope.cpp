// Rotary position embedding of queries and keys, one launch for both.

#include <fusewheel/kernel.h>
#include <fusewheel/rotary/rope.h>

namespace fusewheel {
namespace {

// If they can be read. Elsewhere what is rotated by a row outside the tables becomes NaN.
void check_positions(const char* op, const RopeArgs& args) {
  if (!can_read_tensors() || args.rows == nullptr) {
    return;
  }
  for (int64_t item = 0; item < args.batch * args.length; ++item) {
    const int64_t batch = item / args.length;
    const int64_t position = item % args.length;
    const int64_t row = args.rows[batch * args.row_strides[0] + position * args.row_strides[1]];
    if (row < 0 || row >= args.row_count) {
      fail(op, "positions must be rows of the tables, between 0 and " +
                   std::to_string(args.row_count - 1) + ", got " + std::to_string(row));
    }
  }
}

void rotate(const char* op, const Rope& call) {
  const auto& args = call.args;
  check_positions(op, args);
  const int64_t heads = args.tensors[0].heads + args.tensors[1].heads;
  if (args.batch * args.length * heads * args.size > 0) {
    run(op, rope_launch, args, call.in[0]);
  }
}

std::tuple<Tensor, Tensor> rope(const Tensor& q, const Tensor& k, const Tensor& cos,
                                const Tensor& sin, bool interleaved,
                                const OptionalTensor& positions) {
  constexpr const char* op = "rope";
  const Rope call(op, {"q", q}, {"k", k}, {"cos", cos}, {"sin", sin}, interleaved, positions,
                  false);
  rotate(op, call);
  return {call.out[0], call.out[1]};
}

std::tuple<Tensor, Tensor> rope_backward(const Tensor& grad_q, const Tensor& grad_k,
                                         const Tensor& cos, const Tensor& sin, bool interleaved,
                                         const OptionalTensor& positions) {
  constexpr const char* op = "rope_backward";
  const Rope call(op, {"grad_q", grad_q}, {"grad_k", grad_k}, {"cos", cos}, {"sin", sin},
                  interleaved, positions, true);
  rotate(op, call);
  return {call.out[0], call.out[1]};
}

void rope_(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved,
           const OptionalTensor& positions) {
  constexpr const char* op = "rope_";
  const Rope call(op, {"x", x}, {"cos", cos}, {"sin", sin}, interleaved, positions);
  rotate(op, call);
  call.write_back(x);
}

FUSEWHEEL_KERNELS(library) {
  kernel<rope>(library, "rope");
  kernel<rope_backward>(library, "rope_backward");
  kernel<rope_>(library, "rope_");
}

}  // namespace
}  // namespace fusewheel
