// Scores of keys in int8 by AVX-512 VNNI: 64 products an instruction instead of 16, and no key is
// widened.
//
// A query is a step times whole numbers below 2^30, each written as four digits from -128 to 127. Their
// sums of products are exact, so what is lost is at most 2^-30 of the query's largest element. The lanes
// of a vector are the digits of four queries, which meet the same four columns of a key: few lanes are
// left to add.
#pragma once

#include "decode_shares.h"
#include "simd/bytes.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)

constexpr int kDigits = 4;
constexpr int kQuad = 4;  // columns that a lane adds
static_assert(kFewQueries * kDigits == kLanes<float>);
// Fewer queries leave too many lanes empty.
constexpr int64_t kLeastQueries = 3;
// Between keys that are taken: a constant, so that sixteen have one address. Longer ones are not taken.
constexpr int64_t kLongest = 256;

struct DigitQueries {
  bool exact;         // else one is infinite, NaN, or too small to have a step
  Vec<float> steps;   // of each digit
  Integers start;     // of sums of products with keys that are 128 more than they are
};

// The digits of sixteen numbers: 16 bytes for each four, digits of the same value beside each other.
FUSEWHEEL_INLINE Bytes digits_of(Integers whole) {
  constexpr uint32_t kMiddles = 0x80808080;
  const Bits moved = bit_cast<Bits>(whole) + kMiddles;
  Bytes order;
  for (int i = 0; i < kBytes; ++i) {
    order[i] = static_cast<int8_t>(i / 16 * 16 + i % 4 * 4 + i / 4 % 4);
  }
  return shuffle(bit_cast<Bytes>(moved ^ kMiddles), order);
}

// One query, number `place`. Returns its step, or 0 if it has none.
FUSEWHEEL_INLINE float pack_query(const float* q, int64_t size, int64_t place, Bytes* to) {
  constexpr float kLeast = 1e-25f;
  constexpr float kMost = 1e30f;
  constexpr int lanes = kLanes<float>;
  Vec<float> most = {};
  Vec<float> odd = {};
  for (int64_t column = 0; column < size; column += lanes) {
    const Vec<float> value = magnitude(load(q + column));
    most = value > most ? value : most;
    odd += value * 0.0f;
  }
  const float largest = max<float>(most);
  if (sum<float>(odd) != 0 || largest > kMost || largest < kLeast) {
    return 0;
  }
  // A power of two, which leaves a float all its digits.
  const float step = bit_cast<float>(bit_cast<uint32_t>(largest) & 0x7f800000) * 0x1p-29f;
  for (int64_t column = 0; column < size; column += lanes) {
    const Bytes digits = digits_of(nearest(load(q + column) * (1 / step)));
    for (int i = 0; i < lanes / kQuad; ++i) {
      char* vector = reinterpret_cast<char*>(to + column / kQuad + i);
      __builtin_memcpy(vector + place * 16, reinterpret_cast<const char*>(&digits) + i * 16, 16);
    }
  }
  return step;
}

// `count` queries, rows of `stride` columns.
inline void pack_queries(const float* q, int64_t stride, int64_t count, int64_t quads,
                         DigitQueries* queries, Bytes* digits) {
  __builtin_memset(digits, 0, static_cast<size_t>(quads * kBytes));
  queries->exact = true;
  float steps[kLanes<float>] = {};
  for (int64_t i = 0; i < count; ++i) {
    float step = pack_query(q + i * stride, stride, i, digits);
    queries->exact = queries->exact && step > 0;
    for (int digit = 0; digit < kDigits; ++digit, step *= 256) {
      steps[i * kDigits + digit] = step;
    }
  }
  queries->steps = load(steps);
  Integers sums = {};
  for (int64_t quad = 0; quad < quads; ++quad) {
    add_products(sums, Bytes{} - int8_t{-128}, digits[quad]);
  }
  queries->start = -sums;
}

// Sixteen keys, each code 128 more than it is. What is behind `size` columns meets zeros.
inline void take_keys(const int8_t* keys, const int64_t* at, int64_t size, uint8_t* to) {
  for (int lane = 0; lane < kLanes<float>; ++lane) {
    const int8_t* row = keys + at[lane];
    uint8_t* own = to + lane * kLongest;
    int64_t column = 0;
    for (; column + kBytes <= size; column += kBytes) {
      const Bytes moved = load_bytes(row + column) ^ (Bytes{} - int8_t{-128});
      __builtin_memcpy(own + column, &moved, kBytes);
    }
    for (; column < size; ++column) {
      own[column] = static_cast<uint8_t>(row[column] + 128);
    }
  }
}

// The products of the queries with sixteen keys, one key a lane. The next ones, rows + at[i], have as
// many lines as there are quads, and are asked for one by one meanwhile: the memory never rests.
__attribute__((noinline)) inline void score_digits(const DigitQueries& queries, const Bytes* digits,
                                                   const uint8_t* keys, int64_t quads,
                                                   const int8_t* rows, const int64_t* at,
                                                   Vec<float>* scores) {
  constexpr int lanes = kLanes<float>;
  Integers sums[lanes];
#pragma GCC unroll 16
  for (int key = 0; key < lanes; ++key) {
    sums[key] = queries.start;
  }
  for (int64_t quad = 0; quad < quads; ++quad) {
    const Bytes own = digits[quad];
    const int64_t next = quad % lanes;
    __builtin_prefetch(rows + at[next + kAhead] + quad / lanes * kBytes, 0, kSecondLevel);
    __builtin_prefetch(rows + at[next + lanes] + quad / lanes * kBytes, 0, kFirstLevel);
#pragma GCC unroll 16
    for (int key = 0; key < lanes; ++key) {
      const uint8_t* from = keys + key * kLongest + quad * kQuad;
      add_products(sums[key], repeat_four(reinterpret_cast<const int8_t*>(from)), own);
    }
  }
  Vec<float> parts[lanes];
#pragma GCC unroll 16
  for (int key = 0; key < lanes; ++key) {
    parts[key] = from_codes(sums[key]) * queries.steps;
  }
  // The digits of four keys at a time, then what belongs to one query.
#pragma GCC unroll 4
  for (int i = 0; i < kFewQueries; ++i) {
    fold_all<kDigits / 2>(parts + i * kDigits);
    scores[i] = parts[i * kDigits];
  }
  transpose<float, kDigits>(scores);
}

// What a task has in scratch memory for them: all its queries, and some keys.
class DigitScores {
 public:
  DigitScores(const DecodeShape& shape, Scratch& scratch)
      : shape_(shape), quads_(up_to_multiple(shape.size, kBytes) / kQuad) {
    const int64_t group = shape.heads / shape.kv_heads;
    fews_ = (group + kFewQueries - 1) / kFewQueries;
    const int64_t count = is_used() ? shape.task_heads * shape.queries * fews_ : 0;
    queries_ = scratch.take<DigitQueries>(count);
    digits_ = scratch.take<Bytes>(count * quads_);
    keys_ = scratch.take<uint8_t>(count > 0 ? kLanes<float> * kLongest : 0);
  }

  // All queries of a task, which are `prepared`: rows `stride` apart.
  void prepare(const float* prepared, int64_t stride) {
    const int64_t group = shape_.heads / shape_.kv_heads;
    for (int64_t h = 0; is_used() && h < shape_.task_heads; ++h) {
      for_few(shape_, h, kFewQueries, [&](const Few& few) {
        const int64_t row = (h * shape_.queries + few.query) * group + few.member;
        pack_queries(prepared + row * stride, stride, few.count, quads_, queries_ + index(few),
                     digits_of(few));
      });
    }
  }

  // The products of `few` with kLanes keys; false if they are not found so. The keys of a head are
  // `taken` once for all queries.
  bool score(const Few& few, const int8_t* keys, const int64_t* at, bool* taken,
             Vec<float>* scores) {
    if (!is_used() || few.count < kLeastQueries || !queries_[index(few)].exact) {
      return false;
    }
    if (!*taken) {
      take_keys(keys, at, shape_.size, keys_);
      *taken = true;
    }
    score_digits(queries_[index(few)], digits_of(few), keys_, quads_, keys, at, scores);
    return true;
  }

 private:
  bool is_used() const {
    return shape_.is_int8 && shape_.dtype != Dtype::kFloat64 && shape_.size <= kLongest &&
           shape_.heads / shape_.kv_heads >= kLeastQueries && choices().vnni;
  }
  int64_t index(const Few& few) const {
    return (few.head * shape_.queries + few.query) * fews_ + few.member / kFewQueries;
  }
  Bytes* digits_of(const Few& few) const { return digits_ + index(few) * quads_; }

  const DecodeShape& shape_;
  int64_t quads_;  // of a row
  int64_t fews_;   // of the queries of a head at one position
  DigitQueries* queries_;
  Bytes* digits_;  // of each few
  uint8_t* keys_;  // kLanes rows
};

#else

class DigitScores {
 public:
  DigitScores(const DecodeShape&, Scratch&) {}
  void prepare(const float*, int64_t) {}
  bool score(const Few&, const int8_t*, const int64_t*, bool*, Vec<float>*) { return false; }
};

#endif

}  // namespace fusewheel::FUSEWHEEL_ISA
