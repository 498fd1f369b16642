// Products of small matrices by the tensor cores, and copies into shared memory that run beside the
// computation. Code for GPUs before compute capability 8.0 has neither: `has_tensor_cores` asks before
// a kernel is launched that needs them.
#pragma once

#include "launch.h"
#include "numbers.h"

#if FUSEWHEEL_EMULATED
#include "emulation/tensor.h"
#endif

namespace fusewheel {

constexpr int kMmaRows = 16;    // of a and of the sums
constexpr int kMmaColumns = 8;  // of b and of the sums
constexpr int kMmaInner = 16;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kHasTensorCores = false;
#else
constexpr bool kHasTensorCores = true;
#endif

// Whether the code that this GPU would run of a kernel was compiled for tensor cores.
template <typename... Parameters>
bool has_tensor_cores(const char* op, void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  check(op, cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  return attributes.ptxVersion >= 80;
}

// Two neighbouring elements of a matrix, the first one in the low half.
__device__ inline uint32_t pair_of(float low, float high, __nv_bfloat16) {
#if FUSEWHEEL_EMULATED
  return emulation::pair_of(__float2bfloat16_rn(low).bits, __float2bfloat16_rn(high).bits);
#else
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &both, sizeof(bits));
  return bits;
#endif
}
__device__ inline uint32_t pair_of(float low, float high, __half) {
#if FUSEWHEEL_EMULATED
  return emulation::pair_of(__float2half_rn(low).bits, __float2half_rn(high).bits);
#else
  const __half2 both = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &both, sizeof(bits));
  return bits;
#endif
}

// sums += a * b, by all lanes of a warp: mma.sync.m16n8k16 of the PTX manual. With r = lane / 4 and
// c = 2 * (lane % 4) a lane has
//   a     [16 x 16]: the pairs at (r, c), (r + 8, c), (r, c + 8), (r + 8, c + 8)
//   b     [16 x 8]:  the pairs down column r at rows c and c + 8
//   sums  [16 x 8]:  the elements (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1)
#if FUSEWHEEL_EMULATED
template <typename T>
__device__ void multiply_add_tiles(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sums)[4],
                                   T) {
  constexpr bool kIsBfloat16 = std::is_same_v<T, __nv_bfloat16>;
  emulation::multiply_add_tiles({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, sums, kIsBfloat16});
}
#else
#define FUSEWHEEL_MMA(type)                                                                 \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                      \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ inline void multiply_add_tiles(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                          float (&sums)[4], __nv_bfloat16) {
  FUSEWHEEL_MMA("bf16");
}
__device__ inline void multiply_add_tiles(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                          float (&sums)[4], __half) {
  FUSEWHEEL_MMA("f16");
}
#undef FUSEWHEEL_MMA
#endif

// Four matrices of 8 x 8 elements from shared memory, by all lanes of a warp: ldmatrix of the PTX
// manual. Lane i brings the address of row i % 8 of matrix i / 8: 16 bytes, at a multiple of 16. Of each
// matrix a lane gets the pair at (r, c), or, transposed, the pair down column r from row c.
template <bool transposed>
__device__ inline void load_matrices(const void* row, uint32_t (&to)[4]) {
  FUSEWHEEL_EXPECT_ALIGNED(row, 16);
#if FUSEWHEEL_EMULATED
  emulation::load_matrices(row, transposed, to);
#else
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
#endif
}

// Begins to copy 16 bytes from global to shared memory; zeros if they do not exist. Both addresses are
// multiples of 16.
__device__ inline void copy_async(void* shared, const void* global, bool exists) {
  FUSEWHEEL_EXPECT_ALIGNED(shared, 16);
  FUSEWHEEL_EXPECT_ALIGNED(global, 16);
#if FUSEWHEEL_EMULATED
  emulation::copy_async(shared, global, exists);
#else
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
#endif
}

// What a thread has begun to copy since the last call becomes one group.
__device__ inline void end_group_of_copies() {
#if FUSEWHEEL_EMULATED
  emulation::block.copies().end_group(emulation::block.linear_index());
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all groups of this thread but the last `left` have arrived. Other threads see them after the
// next barrier.
template <int left>
__device__ inline void wait_for_copies() {
#if FUSEWHEEL_EMULATED
  emulation::block.copies().wait(emulation::block.linear_index(), left);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

}  // namespace fusewheel
