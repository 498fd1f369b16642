// The device parts of the operators over buffers of the exact size, for AddressSanitizer, in shapes
// that meet every path: whole and partial vectors, misaligned starts, gaps between rows, repeated
// operands. Inputs are zero, for which every result is finite; outputs begin as NaN, so an element
// that nobody wrote is seen. What the values are is tested through the operators (tests/ops).

#include <fusewheel/attention/merge_attention_args.h>
#include <fusewheel/norm/rms_norm_args.h>
#include <fusewheel/rotary/rope_args.h>

#include <vector>

#include "buffer.h"

namespace fusewheel {
void mul_launch(const ElementwiseArgs<3>&, Stream);
void silu_mul_backward_launch(const ElementwiseArgs<5>&, Stream);
}  // namespace fusewheel

namespace {

using namespace fusewheel;

struct Layout {
  int64_t rows;
  int64_t columns;
  int64_t gap;      // between the rows of the inputs
  int64_t skipped;  // before the first element
};

constexpr Layout kLayouts[] = {{1, 1, 0, 0},   {1, 255, 0, 0},  {3, 507, 0, 0},  {4, 64, 0, 0},
                               {4, 64, 0, 1},  {5, 33, 7, 0},   {3, 40, 24, 0},  {3, 40, 24, 1},
                               {33, 16, 0, 0}, {2, 600, 8, 0},  {1, 4099, 0, 0}, {2, 4224, 0, 0},
                               {70, 8, 0, 0},  {1, 12288, 0, 0}, {2, 13000, 0, 0}};

template <int outputs, int inputs, typename Launch>
void elementwise(const char* name, Launch run, const Layout& layout, Dtype dtype, int repeated) {
  const int64_t size = size_of(dtype);
  const bool flat = layout.gap == 0 && repeated == 0;
  ElementwiseArgs<outputs + inputs> args{};
  auto& g = args.geometry;
  g.numel = layout.rows * layout.columns;
  g.dims = flat ? 1 : 2;
  g.sizes[0] = flat ? g.numel : layout.columns;
  g.sizes[1] = layout.rows;
  args.dtype = dtype;
  std::vector<Buffer> buffers;
  for (int k = 0; k < outputs + inputs; ++k) {
    // The last input is repeated within each row (1), or a row that is repeated (2).
    const int how = k == outputs + inputs - 1 ? repeated : 0;
    const int64_t pitch = layout.columns + (k < outputs ? 0 : layout.gap);
    g.strides[k][0] = how == 1 ? 0 : 1;
    g.strides[k][1] = how == 1 ? 1 : how == 2 ? 0 : pitch;
    const int64_t count = how == 1   ? layout.rows
                          : how == 2 ? layout.columns
                                     : (layout.rows - 1) * pitch + layout.columns;
    buffers.emplace_back(count, size, layout.skipped, k < outputs ? 0xff : 0);
    args.data[k] = buffers.back().data();
  }
  run(args, nullptr);
  for (int k = 0; k < outputs; ++k) {
    buffers[k].expect_written(size, name);
  }
}

void rms_norm(const Layout& layout, Dtype dtype, int64_t chunks) {
  const int64_t size = size_of(dtype);
  const int64_t wide = accumulate_size_of(dtype);
  const int64_t pitch = layout.columns + layout.gap;
  const int64_t numel = layout.rows * layout.columns;
  const Buffer x((layout.rows - 1) * pitch + layout.columns, size, layout.skipped, 0);
  const Buffer weight(layout.columns, size, 0, 0);
  const Buffer y(numel, size, layout.skipped, 0xff);
  const Buffer rstd(layout.rows, wide, 0, 0xff);
  rms_norm_launch({x.data(), weight.data(), y.data(), rstd.data(), layout.rows, layout.columns,
                   pitch, 1e-5, RmsNormCast::kLlama, dtype},
                  nullptr);
  y.expect_written(size, "rms_norm");
  rstd.expect_written(wide, "rms_norm");
  const Buffer grad(numel, size, layout.skipped, 0);
  const Buffer grad_x(numel, size, 0, 0xff);
  const Buffer partials(chunks * layout.columns, wide, 0, 0xff);
  const Buffer grad_weight(layout.columns, size, 0, 0xff);
  rms_norm_backward_launch({grad.data(), x.data(), weight.data(), rstd.data(), grad_x.data(),
                            partials.data(), grad_weight.data(), layout.rows, layout.columns,
                            layout.columns, pitch, chunks, RmsNormCast::kGemma, dtype},
                           nullptr);
  grad_x.expect_written(size, "rms_norm_backward");
  partials.expect_written(wide, "rms_norm_backward");
  grad_weight.expect_written(size, "rms_norm_backward");
}

// The operands from `first` on are written.
template <int operands>
void merge_attention(const char* name, void (*run)(const MergeArgs<operands>&, Stream), int first,
                     const Layout& layout, Dtype dtype) {
  MergeArgs<operands> args{};
  args.rows.dims = 1;
  args.rows.numel = args.rows.sizes[0] = layout.rows;
  args.size = layout.columns;
  args.dtype = dtype;
  const int64_t sizes[] = {size_of(dtype), accumulate_size_of(dtype)};
  std::vector<Buffer> buffers;
  for (int k = 0; k < operands; ++k) {
    const int64_t columns = k % 2 == 0 ? layout.columns : 1;
    const int64_t pitch = columns + (k < first ? layout.gap : 0);
    args.rows.strides[k][0] = pitch;
    buffers.emplace_back((layout.rows - 1) * pitch + columns, sizes[k % 2], layout.skipped,
                         k < first ? 0 : 0xff);
    args.data[k] = buffers.back().data();
  }
  run(args, nullptr);
  for (int k = first; k < operands; ++k) {
    buffers[k].expect_written(sizes[k % 2], name);
  }
}

void rope(int64_t head_size, int64_t rotated, int64_t skipped, bool interleaved, Dtype dtype) {
  constexpr int64_t kBatch = 2;
  constexpr int64_t kLength = 3;
  constexpr int64_t kHeads[] = {5, 2};
  const int64_t size = size_of(dtype);
  const Buffer cos(kLength * rotated, size, 0, 0);
  const Buffer sin(kLength * rotated, size, skipped, 0);
  std::vector<Buffer> buffers;
  RopeArgs args{};
  for (int i = 0; i < 2; ++i) {
    const int64_t heads = kHeads[i];
    const int64_t numel = kBatch * heads * kLength * head_size;
    buffers.emplace_back(numel, size, skipped, 0);
    buffers.emplace_back(numel, size, 0, 0xff);
    auto& tensor = args.tensors[i];
    tensor = {buffers[2 * i].data(),
              buffers[2 * i + 1].data(),
              heads,
              {heads * kLength * head_size, head_size, heads * head_size},
              {heads * kLength * head_size, kLength * head_size, head_size}};
  }
  args.cos = cos.data();
  args.sin = sin.data();
  args.cos_strides[1] = args.sin_strides[1] = rotated;
  args.batch = kBatch;
  args.length = kLength;
  args.size = head_size;
  // The last row, the first and none.
  const int64_t rows[] = {kLength - 1, 0, kLength};
  args.rows = rows;
  args.row_strides[1] = 1;
  args.row_count = kLength;
  args.rotated = rotated;
  args.interleaved = interleaved;
  args.dtype = dtype;
  rope_launch(args, nullptr);
  buffers[1].expect_written(size, "rope");
  buffers[3].expect_written(size, "rope");
}

}  // namespace

int main() {
  for (const Dtype dtype : kDtypes) {
    for (const Layout& layout : kLayouts) {
      for (int repeated = 0; repeated < 3; ++repeated) {
        elementwise<1, 2>("mul", mul_launch, layout, dtype, repeated);
        elementwise<2, 3>("silu_mul_backward", silu_mul_backward_launch, layout, dtype, repeated);
      }
      for (const int64_t chunks : {1, 3}) {
        rms_norm(layout, dtype, chunks);
      }
      merge_attention("merge_attention", merge_attention_launch, kMerged, layout, dtype);
      merge_attention("merge_attention_backward", merge_attention_backward_launch, kGradOut, layout,
                      dtype);
    }
    for (const int64_t head_size : {2, 6, 16, 64}) {
      for (const int64_t skipped : {0, 1}) {
        for (const int64_t rotated : {head_size, head_size / 4 * 2}) {
          rope(head_size, rotated, skipped, false, dtype);
          rope(head_size, rotated, skipped, true, dtype);
        }
      }
    }
  }
}
