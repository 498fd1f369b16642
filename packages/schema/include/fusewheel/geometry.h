// Plain data that kernels of every backend read: no torch, no standard library, usable on a device.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace fusewheel {

// What a launch is put into: cudaStream_t without CUDA's headers, and null on the CPU.
using Stream = CUstream_st*;

enum class Dtype : int32_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

// PyTorch allows no more dimensions than this.
constexpr int kMaxDims = 64;

// More are left after merging only where 2^33 elements or more lie in no order at all. Each operand
// takes 8 bytes a dimension, and a CUDA kernel has 4 KB of parameters.
constexpr int kMergedDims = 32;

// How the operands of an elementwise kernel lie in memory: broadcast to one shape, dimensions
// ordered innermost first and merged where every operand allows it. Strides count elements.
template <int operands>
struct Geometry {
  int dims;
  int64_t numel;
  int64_t sizes[kMergedDims];
  int64_t strides[operands][kMergedDims];
};

// What an elementwise kernel gets: outputs first, then inputs. `scalar` is the operator's own.
template <int operands>
struct ElementwiseArgs {
  Geometry<operands> geometry;
  void* data[operands];
  Dtype dtype;
  double scalar;
};

}  // namespace fusewheel
