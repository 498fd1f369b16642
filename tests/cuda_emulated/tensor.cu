// Kernels that multiply tiles and copy asynchronously, and their neighbours that do it wrong; argv[1]
// names the one to run, argv[2] is "watched" if its accesses are watched. Ends with 1 and a message if something is wrong.

#include <fusewheel/export.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "common/mma.h"

FUSEWHEEL_EXPORT void fusewheel_emulation_watch(int on);

namespace fusewheel {
namespace {

// Small numbers that half types hold; no two rows or columns are alike.
__host__ __device__ float left(int row, int k) { return (row * 7 + k * 3) % 13 - 6; }
__host__ __device__ float right(int k, int column) { return (k * 5 + column * 11) % 17 - 8; }

template <typename T>
__global__ void multiplies(float* out) {
  const int r = threadIdx.x / 4;
  const int c = threadIdx.x % 4 * 2;
  uint32_t a[4];
  uint32_t b[2];
  for (int i = 0; i < 4; ++i) {
    const int row = r + i % 2 * 8;
    const int k = c + i / 2 * 8;
    a[i] = pair_of(left(row, k), left(row, k + 1), T{});
  }
  for (int i = 0; i < 2; ++i) {
    const int k = c + i * 8;
    b[i] = pair_of(right(k, r), right(k + 1, r), T{});
  }
  float sums[4] = {1, 1, 1, 1};
  multiply_add_tiles(a, b, sums, T{});
  for (int i = 0; i < 4; ++i) {
    out[(r + i / 2 * 8) * kMmaColumns + c + i % 2] = sums[i];
  }
}

void check_product(const float* out) {
  for (int i = 0; i < kMmaRows * kMmaColumns; ++i) {
    float sum = 1;
    for (int k = 0; k < kMmaInner; ++k) {
      sum += left(i / kMmaColumns, k) * right(k, i % kMmaColumns);
    }
    if (out[i] != sum) {
      throw std::runtime_error("a product is wrong");
    }
  }
}

constexpr int kRows = 32;  // of four matrices
constexpr int kSize = 8;

// Writes the pairs that a lane gets as numbers of 16 bits, by matrix and lane.
template <bool transposed>
__global__ void loads(uint32_t* out) {
  FUSEWHEEL_DYNAMIC_SHARED(uint16_t, shared);
  uint16_t* own = shared + threadIdx.x * kSize;
  for (int i = 0; i < kSize; ++i) {
    own[i] = static_cast<uint16_t>(threadIdx.x * kSize + i);
  }
  __syncwarp();
  uint32_t found[4];
  load_matrices<transposed>(own, found);
  for (int i = 0; i < 4; ++i) {
    out[i * kWarp + threadIdx.x] = found[i];
  }
}

void check_matrices(const uint32_t* out, bool transposed) {
  for (int i = 0; i < 4 * kWarp; ++i) {
    const int matrix = i / kWarp * kSize * kSize;
    const int r = i % kWarp / 4;
    const int c = i % 4 * 2;
    const int first = matrix + (transposed ? c * kSize + r : r * kSize + c);
    const int second = first + (transposed ? kSize : 1);
    if (out[i] != static_cast<uint32_t>(first | second << 16)) {
      throw std::runtime_error("a matrix is wrong");
    }
  }
}

constexpr int kThreads = 64;
constexpr int kPiece = 4;  // numbers of 16 bytes

enum class Fault { kNone, kNoWait, kWaitsForTheFirst, kNoBarrier, kBarrierBefore, kWritesInBetween };

// Each thread copies two pieces, and reads those of another thread.
template <Fault fault>
__global__ void copies(const float* in, float* out) {
  FUSEWHEEL_DYNAMIC_SHARED(float, shared);
  const int own = threadIdx.x * kPiece;
  const int other = (threadIdx.x ^ 32) * kPiece;
  for (int half = 0; half < 2; ++half) {
    const int at = half * kThreads * kPiece + own;
    copy_async(shared + at, in + at, half == 0 || threadIdx.x != 5);
    end_group_of_copies();
  }
  if (fault == Fault::kWritesInBetween) {
    shared[own] = 1;
  }
  if (fault == Fault::kBarrierBefore) {
    __syncthreads();
  }
  if (fault == Fault::kWaitsForTheFirst) {
    wait_for_copies<1>();
  } else if (fault != Fault::kNoWait) {
    wait_for_copies<0>();
  }
  if (fault != Fault::kNoBarrier && fault != Fault::kBarrierBefore) {
    __syncthreads();
  }
  for (int i = 0; i < kPiece; ++i) {
    out[own + i] = shared[other + i];
    out[kThreads * kPiece + own + i] = shared[kThreads * kPiece + other + i];
  }
}

void check_copies(const float* in, const float* out) {
  for (int i = 0; i < 2 * kThreads * kPiece; ++i) {
    const int from = i ^ (32 * kPiece);
    const bool exists = from < kThreads * kPiece || from / kPiece % kThreads != 5;
    if (out[i] != (exists ? in[from] : 0)) {
      throw std::runtime_error("a copy is wrong");
    }
  }
}

void run(const char* name, const float* in, float* out) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  const auto copy = [&](auto kernel) {
    launch(name, kernel, 1, kThreads, 2 * kThreads * kPiece * sizeof(float), nullptr, in, out);
    check_copies(in, out);
  };
  const auto multiply = [&](auto kernel) {
    launch(name, kernel, 1, kWarp, 0, nullptr, out);
    check_product(out);
  };
  const auto load = [&](auto kernel, bool transposed) {
    auto* words = reinterpret_cast<uint32_t*>(out);
    launch(name, kernel, 1, kRows, kRows * kSize * sizeof(uint16_t), nullptr, words);
    check_matrices(words, transposed);
  };
  if (is("rows")) return load(loads<false>, false);
  if (is("columns")) return load(loads<true>, true);
  if (is("bfloat16")) return multiply(multiplies<__nv_bfloat16>);
  if (is("float16")) return multiply(multiplies<__half>);
  if (is("right")) return copy(copies<Fault::kNone>);
  if (is("no_wait")) return copy(copies<Fault::kNoWait>);
  if (is("waits_for_the_first")) return copy(copies<Fault::kWaitsForTheFirst>);
  if (is("no_barrier")) return copy(copies<Fault::kNoBarrier>);
  if (is("barrier_before")) return copy(copies<Fault::kBarrierBefore>);
  if (is("writes_in_between")) return copy(copies<Fault::kWritesInBetween>);
  if (is("half_a_warp")) {
    return launch(name, multiplies<__half>, 1, kWarp / 2, 0, nullptr, out);
  }
  throw std::runtime_error("no such kernel");
}

}  // namespace
}  // namespace fusewheel

int main(int, char** argv) {
  using namespace fusewheel;
  // Of the heap: this program's own writable memory stands for shared memory.
  struct alignas(32) Sector {
    float values[8];
  };
  constexpr int kSectors = 2 * kThreads * kPiece / 8;
  std::vector<Sector> in(kSectors);
  std::vector<Sector> out(kSectors);
  for (int i = 0; i < 8 * kSectors; ++i) {
    in[i / 8].values[i % 8] = static_cast<float>(i + 1);
  }
  fusewheel_emulation_watch(std::strcmp(argv[2], "watched") == 0 ? 1 : 0);
  try {
    run(argv[1], in.front().values, out.front().values);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
