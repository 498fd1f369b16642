// What the kernels of attention_decode are given.
//
// Keys and values lie in pages. A cache [batch, kv heads, capacity, size] has one page for each
// sequence, with room for `capacity` keys; without a table, the page of a sequence has its number.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// Keys are taken so many at a time, by whichever thread is free. What such a part gives depends on its
// keys alone, and the parts of a sequence are merged in their order.
constexpr int64_t kDecodePart = 512;

// One value or one row for each key and head, at page * page stride + key of the page * key stride +
// head * head stride. The elements of a row are contiguous.
struct Cache {
  const void* data;
  int64_t page;
  int64_t key;
  int64_t head;
};

struct DecodeShape {
  int64_t batch;
  int64_t heads;
  int64_t kv_heads;
  int64_t queries;
  int64_t size;        // of a query and of a key
  int64_t value_size;  // of a value and of a result
  // Query i stands at key i + length - queries. It sees that one and so many before it; -1 for all.
  int64_t left;
  double scale;
  double softcap;
  Dtype dtype;        // of queries and results
  Dtype cache_dtype;  // of keys and values, unless
  bool is_int8;       // they are int8, with a scale for each key and head
  int64_t task_heads;  // heads of keys and values that a task takes: one or all
};

// How a kernel divides its work.
struct DecodePlan {
  int64_t stride;         // between the rows of prepared queries; 0 if tasks read them as they are
  int64_t value_stride;   // between those of sums
  int64_t scratch_bytes;  // of a thread
};

// A row is a query of a head. The largest score, the sum of exponentials relative to it and the sum of
// values in these proportions are known for each row of each part.
struct DecodeArgs {
  DecodeShape shape;
  DecodePlan plan;
  const void* q;
  int64_t q_strides[3];  // the elements of a query are contiguous
  Cache k;
  Cache v;
  Cache k_scales;          // in the dtype of computation
  Cache v_scales;          // likewise
  const void* sinks;       // [heads], in the dtype of q; null where there are none
  const int64_t* lengths;  // [batch]
  const int32_t* table;    // [batch, entries], null where there is none
  int64_t entries;
  int64_t page_size;
  const int64_t* first_part;  // [batch + 1]: the number of parts of all sequences before
  // In the dtype of computation, but the result:
  void* prepared;             // [batch, kv heads, queries, group, stride]: scaled queries
  void* peaks;                // [parts, heads, queries]
  void* totals;               // likewise
  void* sums;                 // [parts, heads, queries, value stride]
  void* out;                  // [batch, heads, queries, value size], in the dtype of q
  void* logsumexp;            // [batch, heads, queries]
};

}  // namespace fusewheel
