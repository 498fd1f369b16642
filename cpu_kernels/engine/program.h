// A program as `run` executes it: read from bytes, and checked to its last number.
//
// The bytes, little-endian:
//
//   header    "FUSEWHEL", version, 0, number of bytes (64 bits), CRC-32 of all that follows, 0
//   numbers   count, then (kind, a, b, 64-bit value) for each: numbers.h
//   values    number of inputs, count, then for each
//               source (0 input, 1 result of a step, 2 view), dtype (torch's number), rank,
//               of a view: the value it shows and the number of its first element; else 0, 0
//               the numbers of its sizes, then of its strides
//   texts     count, then (size, characters) for each: lines of the model
//   steps     count, then for each
//               operator's name, overload (size, characters), number of a text, count of arguments,
//               arguments: a letter (operators.h) and
//                 T, O: value    L: count, values    i, N: number    I: count, numbers
//                 f, F: 64-bit float    b: 0 or 1    d: dtype    m: 0 contiguous, 1 preserve
//                 - (also in place of O, N, F, d, m): nothing
//               count of results, results: value, or 0xFFFFFFFF where it is not used
//   outputs   how many of the numbers `outputs` shows, count, values: results or views of results,
//             no two of which share one
//
// Everything else is 32 bits wide. An argument of the operator, `outputs`, says the same of the
// results, for those who cannot read the program: how many numbers, (kind, a, b, value) of each,
// how many outputs, (dtype, rank, numbers of sizes, numbers of strides) of each.
#pragma once

#include <fusewheel/linear/linear_args.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "few.h"
#include "layout.h"
#include "operators.h"

namespace fusewheel::engine {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kUnused = 0xFFFFFFFF;

enum class Source : uint32_t { kInput, kResult, kView };

struct Value {
  Source source;
  int32_t dtype;
  uint32_t of;      // the value that a view shows: an input or a result; else its own number
  uint32_t offset;  // the number of a view's first element
  Few<uint32_t, 4> sizes;    // numbers
  Few<uint32_t, 4> strides;  // numbers
};

// A value as an argument. Nothing needs it after its last use.
struct Use {
  uint32_t value;
  bool last;       // of the value
  bool last_base;  // of what a view shows
};

struct Argument {
  char letter;  // '-' for None
  double number;
  Few<Use, 1> values;
  Few<uint32_t, 1> integers;  // numbers; a dtype, bool or memory format is itself
};

class Call;
struct Step;

// Calls the kernel of a step with pointers. False where the step's operator has to be called, which also
// says what is wrong; nothing has happened then.
using PointerStep = bool (*)(Call& call, const Step& step);

// A linear layer of few rows of which all but the memory is known. What it needs lies side by side, because
// the weights of a model have driven everything out of the processor's caches when they have been read.
struct Layer {
  LinearWeight weight;  // without its memory
  int64_t rows;
  int64_t stride;  // of the rows of x
  uint32_t x;           // values; kUnused for none
  uint32_t codes;
  uint32_t scales;
  uint32_t zeros;
  uint32_t bias;
  uint32_t y;
  bool dynamic;  // x is rounded to int8
};

struct Step {
  const Operator* callee;
  PointerStep with_pointers;  // null if it has none
  bool makes_tensors;         // with pointers too
  uint32_t text;
  std::vector<Argument> arguments;
  Few<uint32_t, 3> results;
  bool is_linear;
  WeightKind kind;  // of the weight of a linear layer
  uint32_t layer;   // its place among the layers of the program, kUnused if it has none
  uint32_t beside;  // how many of the next steps are linear layers of the same input, as this one is

  // An argument that is a tensor, or may be None.
  uint32_t value(size_t i) const { return arguments[i].values[0].value; }
  bool has(size_t i) const { return arguments[i].letter != '-'; }

  bool takes_pointers() const { return is_linear || with_pointers != nullptr; }
  // Whether it writes its results to memory that it is given.
  bool fills_memory() const { return takes_pointers() && !makes_tensors; }
};

struct Program {
  uint32_t inputs;
  std::vector<Number> numbers;
  std::vector<Value> values;
  std::vector<std::string> texts;
  std::vector<Step> steps;
  std::vector<Layer> layers;  // whose sizes are constants, and whose weights are inputs
  std::vector<uint32_t> outputs;
  std::vector<int64_t> declared;  // what `outputs` has to say
  std::vector<Tenant> tenants;         // in the order of their first steps
  std::vector<uint32_t> tenant_sizes;  // numbers on which their sizes depend
  std::unique_ptr<ArenaPlans> plans = std::make_unique<ArenaPlans>();
};

// How a value lies in memory, with these values of the program's numbers.
Layout layout_of(const Program& program, const std::vector<int64_t>& numbers, uint32_t value);

// Whether a step is a linear layer of few rows that can be called with pointers, and which.
bool describe_layer(const Program& program, const std::vector<int64_t>& numbers, const Step& step,
                    Layer& layer);

// Sets which layers are known.
void mark_layers(Program& program);

// Throws std::runtime_error where the bytes are not a program that this library can run.
std::shared_ptr<const Program> read_program(const uint8_t* bytes, size_t size);

}  // namespace fusewheel::engine
