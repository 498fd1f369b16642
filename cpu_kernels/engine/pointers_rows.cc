// Norms and activations with pointers.

#include <fusewheel/norm/add_layer_norm_args.h>
#include <fusewheel/norm/add_rms_norm_args.h>

#include "call.h"
#include "dtypes.h"
#include "pointers.h"

namespace fusewheel {

void silu_mul_launch(const ElementwiseArgs<3>&, Stream);
void gelu_mul_launch(const ElementwiseArgs<3>&, Stream);
void gelu_launch(const ElementwiseArgs<2>&, Stream);

namespace engine {

namespace {

constexpr int64_t kLine = 64;

int64_t whole_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// A norm of rows, or of sums of rows. Its results are y, the sum if there is one, and statistics.
class Norm {
 public:
  // `added` says whether it adds a residual, behind which its parameters follow.
  Norm(Call& call, const Step& step, bool added)
      : call_(call), step_(step), added_(added), x_(call.layout_of(step.value(0))) {}

  // Whether a kernel can be called with `count` parameters, where no statistics are needed.
  bool fits(size_t count) {
    bool found = find_dtype(call_.dtype_of(step_.value(0)), dtype) && find_stride(x_, stride_) &&
                 is_result(step_.results[0]);
    if (added_) {
      const Layout other = call_.layout_of(step_.value(1));
      const uint32_t sum = step_.results[1];
      found = found && same_dtype(step_.value(1)) && other.has_shape_of(x_) &&
              find_stride(other, residual_stride_) && (sum == kUnused || is_result(sum));
    }
    for (size_t i = 0; found && i < count; ++i) {
      found = is_parameter(first() + i);
    }
    for (size_t i = first(); found && i < step_.results.size(); ++i) {
      found = step_.results[i] == kUnused;
    }
    return found;
  }

  // What the kernels are given.
  void fill(AddRowsArgs& add, RmsNormArgs& norm) {
    const void* x = fill_sum(add);
    norm = {x, parameter(0), y(), statistics_, count(), size(), norm_stride(), eps(first() + 1),
            static_cast<RmsNormCast>(cast()), dtype};
  }

  void fill(AddRowsArgs& add, LayerNormArgs& norm) {
    const void* x = fill_sum(add);
    norm = {x, parameter(0), parameter(1), y(), statistics_, statistics_ + statistic_bytes(),
            count(), size(), norm_stride(), eps(first() + 2), dtype};
  }

  // Of an RMS norm.
  int64_t cast() const { return call_.number(step_.arguments[first() + 2].integers[0]); }

  Dtype dtype = Dtype::kFloat32;

 private:
  size_t first() const { return added_ ? 2 : 1; }
  int64_t size() const { return x_.last_size(); }
  int64_t count() const { return x_.numel / size(); }
  int64_t norm_stride() const { return added_ ? size() : stride_; }
  double eps(size_t i) const { return step_.arguments[i].number; }
  int64_t statistic_bytes() const { return whole_lines(count() * sizeof(float)); }
  void* y() { return call_.memory_for(step_.results[0], call_.layout_of(step_.results[0])); }

  bool same_dtype(uint32_t value) const {
    return call_.dtype_of(value) == call_.dtype_of(step_.value(0));
  }

  bool is_result(uint32_t value) const {
    if (value == kUnused || !same_dtype(value)) {
      return false;
    }
    const Layout layout = call_.layout_of(value);
    return layout.has_shape_of(x_) && layout.is_contiguous();
  }

  bool is_parameter(size_t i) const {
    if (!step_.has(i)) {
      return true;
    }
    const Layout layout = call_.layout_of(step_.value(i));
    return same_dtype(step_.value(i)) && layout.rank == 1 && layout.sizes[0] == size() &&
           layout.is_contiguous();
  }

  const void* parameter(size_t i) {
    const size_t at = first() + i;
    return step_.has(at) ? call_.data_of(step_.value(at)) : nullptr;
  }

  // What the norm reads. Makes memory for the statistics, and for a sum that nobody needs.
  const void* fill_sum(AddRowsArgs& add) {
    const void* x = call_.data_of(step_.value(0));  // first: it refuses views of too many elements
    const bool unused = added_ && step_.results[1] == kUnused;
    const int64_t sums = unused ? whole_lines(x_.numel * item_size(dtype)) : 0;
    auto* memory = static_cast<char*>(call_.scratch(2 * statistic_bytes() + sums));
    statistics_ = memory + sums;
    if (!added_) {
      return x;
    }
    const uint32_t sum = step_.results[1];
    void* to = unused ? memory : call_.memory_for(sum, call_.layout_of(sum));
    add = {x, call_.data_of(step_.value(1)), to, size(), stride_, residual_stride_};
    return to;
  }

  Call& call_;
  const Step& step_;
  bool added_;
  Layout x_;
  int64_t stride_ = 0;
  int64_t residual_stride_ = 0;
  char* statistics_ = nullptr;
};

bool run_rms_norm(Call& call, const Step& step, bool added) {
  Norm norm(call, step, added);
  if (!norm.fits(1) || norm.cast() < 0 || norm.cast() > 2) {
    return false;
  }
  AddRmsNormArgs args;
  norm.fill(args.add, args.norm);
  if (added) {
    add_rms_norm_launch(args, nullptr);
  } else {
    rms_norm_launch(args.norm, nullptr);
  }
  return true;
}

bool run_layer_norm(Call& call, const Step& step, bool added) {
  Norm norm(call, step, added);
  if (!norm.fits(2)) {
    return false;
  }
  AddLayerNormArgs args;
  norm.fill(args.add, args.norm);
  if (added) {
    add_layer_norm_launch(args, nullptr);
  } else {
    layer_norm_launch(args.norm, nullptr);
  }
  return true;
}

// An elementwise kernel of tensors of one shape.
template <int inputs>
bool elementwise(Call& call, const Step& step,
                 void (*launch)(const ElementwiseArgs<inputs + 1>&, Stream)) {
  ElementwiseArgs<inputs + 1> args;
  const int32_t number = call.dtype_of(step.value(0));
  const uint32_t result = step.results[0];
  if (result == kUnused || call.dtype_of(result) != number || !find_dtype(number, args.dtype)) {
    return false;
  }
  const Layout y = call.layout_of(result);
  if (y.numel == 0 || !y.is_contiguous()) {
    return false;
  }
  for (int i = 0; i < inputs; ++i) {
    const Layout x = call.layout_of(step.value(i));
    if (call.dtype_of(step.value(i)) != number || !x.has_shape_of(y) || !x.is_contiguous()) {
      return false;
    }
  }
  args.geometry.dims = 1;
  args.geometry.numel = y.numel;
  args.geometry.sizes[0] = y.numel;
  for (int i = 0; i <= inputs; ++i) {
    args.geometry.strides[i][0] = 1;
  }
  for (int i = 0; i < inputs; ++i) {
    args.data[i + 1] = const_cast<void*>(call.data_of(step.value(i)));
  }
  args.data[0] = call.memory_for(result, y);
  const auto& last = step.arguments.back();
  args.scalar = last.letter == 'b' ? last.integers[0] : 0;
  launch(args, nullptr);
  return true;
}

}  // namespace

bool rms_norm_with_pointers(Call& call, const Step& step) {
  return run_rms_norm(call, step, false);
}

bool add_rms_norm_with_pointers(Call& call, const Step& step) {
  return run_rms_norm(call, step, true);
}

bool layer_norm_with_pointers(Call& call, const Step& step) {
  return run_layer_norm(call, step, false);
}

bool add_layer_norm_with_pointers(Call& call, const Step& step) {
  return run_layer_norm(call, step, true);
}

bool silu_mul_with_pointers(Call& call, const Step& step) {
  return elementwise<2>(call, step, silu_mul_launch);
}

bool gelu_mul_with_pointers(Call& call, const Step& step) {
  return elementwise<2>(call, step, gelu_mul_launch);
}

bool gelu_with_pointers(Call& call, const Step& step) {
  return elementwise<1>(call, step, gelu_launch);
}

}  // namespace engine
}  // namespace fusewheel
