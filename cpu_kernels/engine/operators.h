// The operators that a step of a program may call.
//
// A program says which operator a step calls, and arguments for it. Nobody compares these with the
// schema before they are read as tensors or as numbers, so a program may only call what is listed
// here with the types of its arguments. A letter stands for each:
//
//   T  Tensor      L  Tensor[]   i  int   f  float   b  bool   I  int[]
//   O  Tensor?     N  int?       F  float?           d  ScalarType?   m  MemoryFormat?
//   -  an argument that is always None
//
// Every operator returns tensors only, and writes to none of its arguments.
#pragma once

#include <fusewheel/kernel.h>

#include <string>
#include <string_view>

namespace fusewheel::engine {

struct Operator {
  std::string name;      // "aten::cat"
  std::string overload;  // "" for the default one
  std::string letters;   // of its arguments
  int results;
  // A kernel of this library, which is called without the dispatcher; null for all others.
  void (*call)(StableIValue* stack, uint64_t arguments, uint64_t results);
};

// Null if it is not listed. What is found stays.
const Operator* find_operator(std::string_view name, std::string_view overload);

}  // namespace fusewheel::engine
