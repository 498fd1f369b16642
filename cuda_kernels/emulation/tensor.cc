#include "tensor.h"

#include "half.h"
#include "watch.h"

namespace fusewheel::emulation {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kInner = 16;

double element(uint32_t pair, int which, bool is_bfloat16) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * which));
  return is_bfloat16 ? __bfloat162float({bits}) : __half2float({bits});
}

// Of all lanes, by the layouts of the PTX manual.
void multiply(void* const* lanes) {
  double a[kRows][kInner];
  double b[kInner][kColumns];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const auto& part = *static_cast<const TilePart*>(lanes[lane]);
    const unsigned r = lane / 4;
    const unsigned c = 2 * (lane % 4);
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 4; ++k) {
        a[r + 8 * (k % 2)][c + 8 * (k / 2) + i] = element(part.a[k], i, part.is_bfloat16);
      }
      for (int k = 0; k < 2; ++k) {
        b[c + 8 * k + i][r] = element(part.b[k], i, part.is_bfloat16);
      }
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const auto& part = *static_cast<const TilePart*>(lanes[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + 8 * (i / 2);
      const unsigned column = 2 * (lane % 4) + i % 2;
      double sum = part.sums[i];
      for (int k = 0; k < kInner; ++k) {
        sum += a[row][k] * b[k][column];
      }
      part.sums[i] = static_cast<float>(sum);
    }
  }
  if (watch != nullptr) {
    watch->multiplied(kRows * kColumns * kInner);
  }
}

void distribute(void* const* lanes) {
  constexpr unsigned kSize = 8;  // of a matrix
  uint16_t elements[kWarpSize][kSize];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(elements[lane], &static_cast<const MatrixPart*>(lanes[lane])->row,
                sizeof(elements[lane]));
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const auto& part = *static_cast<const MatrixPart*>(lanes[lane]);
    const unsigned r = lane / 4;
    const unsigned c = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      const auto* matrix = elements + i * kSize;
      part.to[i] = part.transposed ? pair_of(matrix[c][r], matrix[c + 1][r])
                                   : pair_of(matrix[r][c], matrix[r][c + 1]);
    }
  }
}

}  // namespace

void exchange_matrices(MatrixPart part) { block.together(&part, &distribute); }

void multiply_add_tiles(TilePart part) { block.together(&part, &multiply); }

}  // namespace fusewheel::emulation
