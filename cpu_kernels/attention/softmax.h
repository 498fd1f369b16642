// The softmax of rows of scores that come a block at a time.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
#pragma once

#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

// The largest lane of each of kLanes vectors, one a lane.
template <typename A>
FUSEWHEEL_INLINE Vec<A> maxima_of(Vec<A>* values) {
  transpose<A>(values);
#pragma GCC unroll 4
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) {
      values[i] = values[i + width] > values[i] ? values[i + width] : values[i];
    }
  }
  return values[0];
}

// What is known of some queries after the keys so far.
template <typename A>
struct Progress {
  A* peaks;        // the largest score of each
  A* totals;       // the sum of exponentials relative to it
  A* sums;         // rows of the values in these proportions
  int64_t stride;  // between them
};

// Makes scores, columns [begin, end) of `rows` rows, exponentials relative to the largest score so far;
// totals and sums become relative to it too.
template <typename A>
void exponentials(A* all, int64_t rows, int64_t begin, int64_t end, const Progress<A>& progress) {
  constexpr int lanes = kLanes<A>;
  for (int64_t i = 0; i < rows; i += lanes) {
    const int live = static_cast<int>(rows - i < lanes ? rows - i : lanes);
    A* scores = all + i * kScoreStride<A>;
    Vec<A> parts[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      Vec<A> largest = splat(kNothing<A>);
      for (int64_t j = begin; lane < live && j < end; j += lanes) {
        const Vec<A> value = load(scores + lane * kScoreStride<A> + j);
        largest = value > largest ? value : largest;
      }
      parts[lane] = largest;
    }
    A* peaks = progress.peaks + i;
    A* totals = progress.totals + i;
    const Vec<A> found = maxima_of<A>(parts);
    const Vec<A> old = load(peaks);
    const Vec<A> peak = found > old ? found : old;
    // Where no key is seen yet, anything finite will do.
    const Vec<A> base = peak == kNothing<A> ? Vec<A>{} : peak;
    const Vec<A> shrinks = exp_normal(old - base);
    for (int lane = 0; lane < lanes; ++lane) {
      Vec<A> total = {};
      for (int64_t j = begin; lane < live && j < end; j += lanes) {
        A* at = scores + lane * kScoreStride<A> + j;
        const Vec<A> value = exp_normal(load(at) - base[lane]);
        store(at, value);
        total += value;
      }
      parts[lane] = total;
    }
    store(peaks, peak);
    store(totals, load(totals) * shrinks + sums_of<A>(parts));
    for (int lane = 0; lane < live; ++lane) {
      const A shrink = shrinks[lane];
      if (shrink != 1) {
        A* sums = progress.sums + (i + lane) * progress.stride;
        for (int64_t j = 0; j < progress.stride; j += lanes) {
          store(sums + j, load(sums + j) * shrink);
        }
      }
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
