// Which experts a token goes to, once its scores are known; the same on every device. Who includes this
// file defines FUSEWHEEL_CHOOSER, the specifiers of its functions: they must leave no function behind
// that another level of instructions could call.
#pragma once

#include <fusewheel/experts/route_args.h>

#ifndef FUSEWHEEL_CHOOSER
#error "define FUSEWHEEL_CHOOSER before this file is included"
#endif

namespace fusewheel {

// Larger numbers come first, NaN before all of them, and of equals the one with the lower index.
template <typename A>
FUSEWHEEL_CHOOSER bool comes_before(A a, int64_t index_a, A b, int64_t index_b) {
  const bool a_is_nan = a != a;
  const bool b_is_nan = b != b;
  if (a_is_nan != b_is_nan) {
    return a_is_nan;
  }
  return a > b || (!(a < b) && index_a < index_b);
}
template <typename A>
FUSEWHEEL_CHOOSER bool comes_before(const A* values, int64_t a, int64_t b) {
  return comes_before(values[a], a, values[b], b);
}

// The index in [begin, end) that comes next after `last`; the first of all if that is negative.
template <typename A>
FUSEWHEEL_CHOOSER int64_t next_of(const A* values, int64_t begin, int64_t end, int64_t last) {
  int64_t best = -1;
  for (int64_t i = begin; i < end; ++i) {
    if ((last < 0 || comes_before(values, last, i)) &&
        (best < 0 || comes_before(values, i, best))) {
      best = i;
    }
  }
  return best;
}

// Experts of groups that are not chosen get -inf in `choice`. Groups are chosen by the sum of the
// largest of their `values`.
template <typename A>
FUSEWHEEL_CHOOSER void choose_groups(const RouteArgs& args, const A* values, A* choice, A* of_groups) {
  const int64_t size = args.experts / args.groups;
  for (int64_t g = 0; g < args.groups; ++g) {
    A sum = 0;
    int64_t last = -1;
    for (int64_t i = 0; i < args.group_best; ++i) {
      last = next_of(values, g * size, (g + 1) * size, last);
      sum += values[last];
    }
    of_groups[g] = sum;
  }
  int64_t last = -1;
  for (int64_t i = 0; i < args.chosen_groups; ++i) {
    last = next_of(of_groups, 0, args.groups, last);
  }
  for (int64_t g = 0; g < args.groups; ++g) {
    if (g != last && comes_before(of_groups, last, g)) {
      for (int64_t i = g * size; i < (g + 1) * size; ++i) {
        choice[i] = -static_cast<A>(__builtin_inff());
      }
    }
  }
}

// The experts of a token and their weights, from its scores and from what experts are chosen by.
template <typename A>
FUSEWHEEL_CHOOSER void choose_experts(const RouteArgs& args, int64_t token) {
  const A* scores = static_cast<const A*>(args.scores) + token * args.experts;
  A* choice = static_cast<A*>(args.choice) + token * args.experts;
  A* weights = static_cast<A*>(args.weights) + token * args.k;
  int64_t* indices = args.indices + token * args.k;
  if (args.groups > 1) {
    choose_groups(args, args.bias == nullptr ? scores : choice, choice,
                  static_cast<A*>(args.of_groups) + token * args.groups);
  }
  A sum = 0;
  int64_t last = -1;
  for (int64_t i = 0; i < args.k; ++i) {
    last = next_of(choice, 0, args.experts, last);
    indices[i] = last;
    sum += scores[last];
  }
  const A divisor = args.normalize ? sum + static_cast<A>(1e-20) : A{1};
  for (int64_t i = 0; i < args.k; ++i) {
    weights[i] = scores[indices[i]] / divisor * static_cast<A>(args.scale);
  }
}

}  // namespace fusewheel
