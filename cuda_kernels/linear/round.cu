// Activations rounded to 8 bits: step = max |x| / 127 of a group, code = round(x * (127 / max |x|)),
// halves to even. They become the float32 numbers that the codes stand for.

#include <cfloat>

#include "args.h"
#include "common/divide.h"
#include "common/reduce.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

// A row of threads has a group.
__global__ void __launch_bounds__(kMaxRowThreads)
    round_activations(const RoundArgs args, Divisor groups) {
  const int64_t count = args.rows * args.groups;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t item = block + threadIdx.y;
    // Every thread takes part in the maximum, also of groups beyond the last: those have size 0.
    const int64_t size = item < count ? args.group_size : 0;
    const int64_t row = groups.divide(item);
    const int64_t from = row * args.stride + (item - row * args.groups) * args.group_size;
    float most = 0;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      most = Larger()(most, fabsf(load_one<float>(args.x, args.dtype, from + i)));
    }
    most = row_max(most);
    // A group of zeros, or of numbers so small that they vanish beside any weight.
    const float inverse = 127 / most > FLT_MAX ? 0 : 127 / most;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const float code = rintf(load_one<float>(args.x, args.dtype, from + i) * inverse);
      args.to[item * args.group_size + i] = code * (most / 127);
    }
  }
}

}  // namespace

void round_launch(const RoundArgs& args, Stream stream) {
  const dim3 block = row_block(args.group_size, 128);
  launch("round_activations", round_activations, blocks_for(args.rows * args.groups, block.y),
         block, 0, stream, args, Divisor(args.groups));
}

}  // namespace fusewheel
