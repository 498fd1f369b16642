// Weights that are stored as blocks: a few neighbouring weights of a row, with their scales beside their
// codes. This table says how large the blocks of a kind are, and `BlockDecoder` what they mean.
//
// The layouts from Q4_0 to MXFP4 are those of GGUF files, and their numbers are those of ggml's types
// (ggml-common.h of https://github.com/ggml-org/ggml). NF4, FP4 and FP8 are ours: a float32 scale, then
// the codes; 4-bit codes in the order of Q4_0, each 32 weights in 16 bytes. NF4 is of Dettmers et al.,
// "QLoRA" (2023); FP4 is bitsandbytes'; FP8 is float8_e4m3fn.
//
// A weight is a float32 number, rounded once: any order of the operations gives the same bits.
#pragma once

#include <cstdint>

namespace fusewheel {

enum class BlockKind : int32_t {
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kMXFP4 = 39,
  kNF4 = 1000,
  kFP4 = 1001,
  kFP8 = 1002,
};

struct BlockFormat {
  BlockKind kind;
  const char* name;
  int32_t weights;  // of a block
  int32_t bytes;    // likewise
};

constexpr BlockFormat kBlockFormats[] = {
    {BlockKind::kQ4_0, "Q4_0", 32, 18},      {BlockKind::kQ4_1, "Q4_1", 32, 20},
    {BlockKind::kQ5_0, "Q5_0", 32, 22},      {BlockKind::kQ5_1, "Q5_1", 32, 24},
    {BlockKind::kQ8_0, "Q8_0", 32, 34},      {BlockKind::kQ2_K, "Q2_K", 256, 84},
    {BlockKind::kQ3_K, "Q3_K", 256, 110},    {BlockKind::kQ4_K, "Q4_K", 256, 144},
    {BlockKind::kQ5_K, "Q5_K", 256, 176},    {BlockKind::kQ6_K, "Q6_K", 256, 210},
    {BlockKind::kIQ4_NL, "IQ4_NL", 32, 18},  {BlockKind::kMXFP4, "MXFP4", 32, 17},
    {BlockKind::kNF4, "NF4", 64, 36},        {BlockKind::kFP4, "FP4", 64, 36},
    {BlockKind::kFP8, "FP8", 64, 68},
};

constexpr BlockFormat block_format(BlockKind kind) {
  for (const BlockFormat& format : kBlockFormats) {
    if (format.kind == kind) {
      return format;
    }
  }
  return {};
}

// Weights that are decoded together: every block is a whole number of such parts.
constexpr int kBlockPart = 32;

}  // namespace fusewheel
