// The sizes of a program: constants, sizes and strides of its inputs, and what follows from them.
#pragma once

#include <cstdint>
#include <vector>

#include "reader.h"

namespace fusewheel::engine {

enum class Kind : uint32_t {
  kConstant,
  kSize,    // of input a, dimension b
  kStride,  // likewise
  kAdd,     // of the numbers a and b, here and below
  kSubtract,
  kMultiply,
  kFloorDivide,
  kModulo,
  kMaximum,
  kMinimum,
};

// `value` is that of a constant; a and b of a calculation are earlier numbers.
struct Number {
  Kind kind;
  uint32_t a;
  uint32_t b;
  int64_t value;
};

// Reads the numbers. Whether inputs have the dimensions that are asked for is for the caller to check.
std::vector<Number> read_numbers(Reader& reader);

// The value of a calculation; an error where it does not fit 64 bits, or divides by 0.
int64_t calculate(Kind kind, int64_t a, int64_t b);

}  // namespace fusewheel::engine
