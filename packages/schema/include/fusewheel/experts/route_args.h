// What the kernels of route are given. Numbers without a dtype are in the accumulation type.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

struct RouteArgs {
  const void* logits;  // [tokens, experts]
  int64_t stride;
  Dtype dtype;       // of logits
  const void* bias;  // [experts], or null
  void* scores;      // [tokens, experts], memory for kernels
  void* choice;      // likewise: by what experts are chosen
  void* of_groups;   // [tokens, groups], likewise
  void* weights;     // [tokens, k]
  int64_t* indices;  // likewise
  int64_t tokens;
  int64_t experts;
  int64_t k;
  int64_t groups;
  int64_t chosen_groups;
  int64_t group_best;
  bool sigmoid;
  bool normalize;
  double scale;
};

void route_launch(const RouteArgs&, Stream);

}  // namespace fusewheel
