// The two kernels of experts, for weights of every kind.
//
// A warp has one feature of a layer. It reads the row of an expert's weight once for up to kRowsAtOnce
// of the pairs that have this expert, and weights of other experts not at all.
#pragma once

#include "activation/gelu.h"
#include "common/divide.h"
#include "pairs.h"
#include "row_groups.h"
#include "weight_rows.h"

namespace fusewheel {
namespace {

constexpr int kRowsAtOnce = 4;

// What is left of a number once it is stored.
template <typename A>
__device__ A rounded(A value, Dtype dtype) {
  switch (dtype) {
    case Dtype::kBFloat16: return static_cast<A>(round_to<__nv_bfloat16>(static_cast<float>(value)));
    case Dtype::kFloat16: return static_cast<A>(round_to<__half>(static_cast<float>(value)));
    default: return value;
  }
}

// By the number of the operator's argument.
template <typename A>
__device__ A activate(A gate, int64_t activation) {
  switch (activation) {
    case 0: return gate / (1 + exponential(-gate));
    case 1: return GeluErf::value(gate);
    default: return GeluTanh::value(gate);
  }
}

// Lane r gets the sum of number r over all lanes, with the bits of warp_sum. In the first two steps a lane
// keeps half of its numbers and gives the others away: four sums take 7 exchanges, not 20.
template <typename A>
__device__ A warp_sums(const A (&numbers)[kRowsAtOnce]) {
  static_assert(kRowsAtOnce == 4);
  const int lane = threadIdx.x;
  A two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const A own = lane < 16 ? numbers[i] : numbers[2 + i];
    const A given = lane < 16 ? numbers[2 + i] : numbers[i];
    two[i] = own + __shfl_xor_sync(0xffffffffu, given, 16);
  }
  const A own = lane % 16 < 8 ? two[0] : two[1];
  const A given = lane % 16 < 8 ? two[1] : two[0];
  const A sum = warp_reduce<Plus>(own + __shfl_xor_sync(0xffffffffu, given, 8), 8);
  return __shfl_sync(0xffffffffu, sum, lane * 8 % kWarp);
}

// C features of a layer for up to kRowsAtOnce pairs, from `first` on in their order: lane r gets those
// of pair r. `place_of` tells where the row of a pair is.
template <int C, typename X, typename Weight, typename PlaceOf>
__device__ void features(const ExpertLayer& layer, const Weight& weight, const InputRows<X>& from,
                         int expert, const int64_t (&own)[C], int rows, const PlaceOf& place_of,
                         Accumulate<X> (&found)[C]) {
  using A = Accumulate<X>;
  int64_t places[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    places[r] = place_of(r < rows ? r : 0);
  }
  A sums[C][kRowsAtOnce] = {};
  lane_dots(weight, expert, own, from, places, rows, sums);
#pragma unroll
  for (int c = 0; c < C; ++c) {
    found[c] = warp_sums(sums[c]);
    if (layer.bias != nullptr) {
      found[c] += load_one<A>(layer.bias, layer.bias_dtype, expert * layer.rows + own[c]);
    }
  }
}

// A row of blocks has the pairs of an expert.
template <typename X, typename Weight>
__global__ void __launch_bounds__(kWarp* kProductWarps, 1)  // the 1: rather fewer blocks than spills
    experts_first(const __grid_constant__ ExpertsFirstArgs args, const Weight weight,
                  const InputRows<X> from, Divisor k, int64_t pairs_in_all) {
  using A = Accumulate<X>;
  __shared__ Pairs pairs;
  const int64_t inner = args.layer.rows / 2;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t begin = 0; begin < pairs_in_all; begin += kMostPairs) {
    const int64_t left = pairs_in_all - begin;
    const int count = left < kMostPairs ? static_cast<int>(left) : kMostPairs;
    sort_pairs(pairs, args.choice, begin, count);
    for (int place = blockIdx.y; place < count; place += gridDim.y) {
      const int expert = pairs.expert_at(place);
      if (expert == kNoExpert || (place > 0 && expert == pairs.expert_at(place - 1))) {
        continue;
      }
      const int end = pairs.end_of_run(place, count);
      for (int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
           column < inner; column += warps) {
        for (int first = place; first < end; first += kRowsAtOnce) {
          const int rows = end - first < kRowsAtOnce ? end - first : kRowsAtOnce;
          const int64_t own[] = {column, inner + column};
          A both[2];
          features(args.layer, weight, from, expert, own, rows, [&](int r) {
            return static_cast<int64_t>(k.divide(begin + pairs.order[first + r]));
          }, both);
          if (static_cast<int>(threadIdx.x) < rows) {
            const A gate = rounded(both[0], args.dtype);
            const A value = activate(gate, args.activation) * rounded(both[1], args.dtype);
            const int64_t pair = begin + pairs.order[first + threadIdx.x];
            store_one(rounded(value, args.dtype), args.hidden, args.hidden_dtype,
                      pair * args.stride + column);
          }
        }
      }
    }
  }
}

// A row of blocks has up to 32 tokens, whose pairs are sorted together; lane t adds up those of token t,
// in the order of its experts. If one token has too many pairs, some are sorted after others.
template <typename X, typename Weight>
__global__ void __launch_bounds__(kWarp* kProductWarps, 1)
    experts_last(const __grid_constant__ ExpertsLastArgs args, const Weight weight,
                 const InputRows<X> from, int most_tokens, int most_slots) {
  using A = Accumulate<X>;
  __shared__ Pairs pairs;
  __shared__ A results[kProductWarps][kMostPairs];
  A* own_results = results[threadIdx.y];
  const int lane = threadIdx.x;
  const int64_t columns = args.layer.rows;
  const int64_t k = args.choice.k;
  for (int64_t token = static_cast<int64_t>(blockIdx.y) * most_tokens; token < args.choice.tokens;
       token += static_cast<int64_t>(gridDim.y) * most_tokens) {
    const int64_t left = args.choice.tokens - token;
    const int tokens = left < most_tokens ? static_cast<int>(left) : most_tokens;
    for (int64_t tile = static_cast<int64_t>(blockIdx.x) * blockDim.y; tile < columns;
         tile += static_cast<int64_t>(gridDim.x) * blockDim.y) {
      const int64_t column = tile + threadIdx.y;
      A total = 0;
      for (int64_t slot = 0; slot < k; slot += most_slots) {
        const int slots = k - slot < most_slots ? static_cast<int>(k - slot) : most_slots;
        const int count = tokens * slots;
        const int64_t begin = token * k + slot;
        sort_pairs(pairs, args.choice, begin, count);
        if (column >= columns) {
          continue;
        }
        for (int first = 0; first < count;) {
          const int expert = pairs.expert_at(first);
          if (expert == kNoExpert) {
            break;
          }
          const int same = pairs.end_of_run(first, count) - first;
          const int rows = same < kRowsAtOnce ? same : kRowsAtOnce;
          const int64_t own[] = {column};
          A found[1];
          features(args.layer, weight, from, expert, own, rows,
                   [&](int r) { return begin + pairs.order[first + r]; }, found);
          if (lane < rows) {
            own_results[pairs.order[first + lane]] = found[0];
          }
          first += rows;
        }
        __syncwarp();
        for (int i = lane * slots; lane < tokens && i < (lane + 1) * slots; ++i) {
          if (pairs.experts[i] != kNoExpert) {
            const int64_t at = (token + lane) * args.weights_stride + slot + i - lane * slots;
            total += load_one<A>(args.weights, args.weights_dtype, at) * own_results[i];
          }
        }
        __syncwarp();
      }
      if (column < columns && lane < tokens) {
        store_one(total, args.y, args.dtype, (token + lane) * columns + column);
      }
    }
  }
}

template <typename X, typename Weight>
void launch_first(const ExpertsFirstArgs& args, const Weight& weight, Stream stream) {
  const int64_t pairs = args.choice.tokens * args.choice.k;
  const auto together = static_cast<unsigned>(pairs < kMostPairs ? pairs : kMostPairs);
  const dim3 grid(blocks_for(args.layer.rows / 2, kProductWarps), together);
  launch("experts", experts_first<X, Weight>, grid, product_block(), 0, stream, args, weight,
         InputRows<X>(args.layer.from, args.layer.stride),
         Divisor(args.choice.k > 0 ? args.choice.k : 1), pairs);
}

template <typename X, typename Weight>
void launch_last(const ExpertsLastArgs& args, const Weight& weight, Stream stream) {
  constexpr int64_t kMostRows = 65535;  // of blocks
  const int64_t k = args.choice.k;
  const int64_t slots = k < 1 ? 1 : k < kMostPairs ? k : kMostPairs;
  const int64_t tokens = kMostPairs / slots < kWarp ? kMostPairs / slots : kWarp;
  const int64_t rows = (args.choice.tokens + tokens - 1) / tokens;
  const dim3 grid(blocks_for(args.layer.rows, kProductWarps),
                  static_cast<unsigned>(rows < kMostRows ? rows : kMostRows));
  launch("experts", experts_last<X, Weight>, grid, product_block(), 0, stream, args, weight,
         InputRows<X>(args.layer.from, args.layer.stride), static_cast<int>(tokens),
         static_cast<int>(slots));
}

}  // namespace
}  // namespace fusewheel
