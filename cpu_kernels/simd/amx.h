// The tile registers of AMX, of which level v4 knows nothing: only some of its processors have them.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)

#define FUSEWHEEL_AMX __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512bf16")))
#define FUSEWHEEL_AMX_INLINE inline __attribute__((always_inline)) FUSEWHEEL_AMX

constexpr int64_t kTile = 16;  // rows; columns of sums

// The processor's tiles, for as long as this lives. Those of sums and of what is multiplied, 0 to 5, may
// have fewer rows, which takes less time.
class Tiles {
 public:
  FUSEWHEEL_AMX_INLINE explicit Tiles(int64_t rows = kTile) {
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
    _tile_loadconfig(&config);
  }
  FUSEWHEEL_AMX_INLINE ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA
