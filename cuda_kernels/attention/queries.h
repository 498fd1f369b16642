// What the gradients of attention need to know of queries.
#pragma once

#include "tasks.h"

namespace fusewheel {
namespace {

template <typename A>
struct Query {
  A base;  // logsumexp; anything finite where there is no key
  A delta;
};

// Of one head, from the first query of a sequence on.
template <typename A>
class Queries {
 public:
  __device__ Queries(const AttentionBackwardArgs& args, const Task& task, int64_t head)
      : logsumexp_(row_values<A>(args.forward.logsumexp, args.forward.shape, task.batch, head,
                                 task.own.query)),
        delta_(row_values<A>(args.delta, args.forward.shape, task.batch, head, task.own.query)),
        count_(task.own.queries) {}

  __device__ Query<A> operator[](int64_t query) const {
    if (query >= count_) {
      return {0, 0};
    }
    const A base = logsumexp_[query];
    return {base == kNothing<A> ? 0 : base, delta_[query]};
  }

 private:
  const A* logsumexp_;
  const A* delta_;
  int64_t count_;
};

}  // namespace
}  // namespace fusewheel
