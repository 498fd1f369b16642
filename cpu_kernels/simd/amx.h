// The tile registers of AMX, of which level v4 knows nothing: only some of its processors have them.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)

#define FUSEWHEEL_AMX __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512bf16")))
#define FUSEWHEEL_AMX_INLINE inline __attribute__((always_inline)) FUSEWHEEL_AMX

constexpr int64_t kTile = 16;  // rows; columns of sums

// The processor's tiles, for as long as this lives: 0 to 3 for sums, 4 and 5 for rows, 6 and 7 for the
// columns that they are multiplied by. There may be fewer rows, and fewer bytes in a row, which takes
// less time.
class Tiles {
 public:
  FUSEWHEEL_AMX_INLINE explicit Tiles(int64_t rows = kTile, int64_t depth = 64) {
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start = {};
      uint8_t reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
    } config;
    for (int i = 0; i < 6; ++i) {
      config.rows[i] = static_cast<uint8_t>(rows);
    }
    for (int i = 0; i < 2; ++i) {
      config.bytes[4 + i] = static_cast<uint16_t>(depth);
      config.rows[6 + i] = static_cast<uint8_t>(depth / 4);
    }
    _tile_loadconfig(&config);
  }
  FUSEWHEEL_AMX_INLINE ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA
