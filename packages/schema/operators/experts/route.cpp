// Which experts of a mixture a token goes to, and what each counts for

#include <fusewheel/experts/route_args.h>
#include <fusewheel/kernel.h>
#include <fusewheel/linear/linear.h>

namespace fusewheel {
namespace {

constexpr const char* kOp = "route";

void check_number(const char* name, int64_t number, int64_t most, const char* what) {
  if (number < 1 || number > most) {
    fail(kOp, std::string(name) + " must be from 1 to " + std::to_string(most) + " (" + what +
                  "), got " + std::to_string(number));
  }
}

void check_route(const Tensor& logits, const std::optional<Tensor>& bias, int64_t k, int64_t groups,
                 int64_t chosen_groups, int64_t group_best) {
  const Argument first{"logits", logits};
  check_floating(kOp, first);
  if (logits.dim() != 2 || logits.sizes()[1] == 0) {
    fail(kOp, "logits must have shape [tokens, experts] with at least one expert, got " +
                  describe(logits.sizes()));
  }
  const int64_t experts = logits.sizes()[1];
  if (bias.has_value()) {
    const Argument argument{"bias", *bias};
    check_same_device(kOp, argument, first);
    check_weight_dtype(kOp, argument, first);
    check_sizes(kOp, argument, {&experts, 1}, "the experts");
  }
  check_number("groups", groups, experts, "the experts");
  if (experts % groups != 0) {
    fail(kOp, "groups must divide the " + std::to_string(experts) + " experts, got " +
                  std::to_string(groups));
  }
  check_number("chosen_groups", chosen_groups, groups, "the groups");
  check_number("group_best", group_best, experts / groups, "the experts of a group");
  check_number("k", k, experts / groups * chosen_groups, "the experts of the chosen groups");
}

std::tuple<Tensor, Tensor> route(const Tensor& logits, int64_t k, const std::optional<Tensor>& bias,
                                 bool sigmoid, int64_t groups, int64_t chosen_groups,
                                 int64_t group_best, bool normalize, double scale) {
  check_route(logits, bias, k, groups, chosen_groups, group_best);
  const RowMatrix rows = rows_of(logits);
  const ScalarType wide = accumulate_type(logits);
  const int64_t tokens = logits.sizes()[0];
  const int64_t result[] = {tokens, k};
  const int64_t of_groups[] = {tokens, groups};
  std::optional<Tensor> added;
  if (bias.has_value()) {
    added = as_contiguous(torch::stable::to(*bias, wide));
  }
  const Tensor weights = empty_contiguous({result, 2}, wide, logits);
  const Tensor indices = empty_contiguous({result, 2}, ScalarType::Long, logits);
  const Tensor scores = empty_contiguous(logits.sizes(), wide, logits);
  const Tensor choice = empty_contiguous(logits.sizes(), wide, logits);
  const Tensor sums = empty_contiguous({of_groups, 2}, wide, logits);
  const RouteArgs args{rows.tensor.const_data_ptr(),
                       rows.stride,
                       dtype_of(logits),
                       added.has_value() ? added->const_data_ptr() : nullptr,
                       scores.mutable_data_ptr(),
                       choice.mutable_data_ptr(),
                       sums.mutable_data_ptr(),
                       weights.mutable_data_ptr(),
                       static_cast<int64_t*>(indices.mutable_data_ptr()),
                       tokens,
                       logits.sizes()[1],
                       k,
                       groups,
                       chosen_groups,
                       group_best,
                       sigmoid,
                       normalize,
                       scale};
  if (tokens > 0) {
    run(kOp, route_launch, args, logits);
  }
  return {weights, indices};
}

FUSEWHEEL_KERNELS(library) { kernel<route>(library, "route"); }

}  // namespace
}  // namespace fusewheel
