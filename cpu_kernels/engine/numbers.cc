#include "numbers.h"

#include <algorithm>

namespace fusewheel::engine {

namespace {

[[noreturn]] void refuse(const char* what) {
  throw std::runtime_error(std::string("run: a size of the program ") + what);
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

}  // namespace

std::vector<Number> read_numbers(Reader& reader) {
  const uint32_t count = reader.count(20);
  std::vector<Number> numbers;
  numbers.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    Number number;
    const auto kind = reader.take<uint32_t>();
    if (kind > static_cast<uint32_t>(Kind::kMinimum)) {
      damaged("a size is computed in an unknown way, " + std::to_string(kind));
    }
    number.kind = static_cast<Kind>(kind);
    number.a = reader.take<uint32_t>();
    number.b = reader.take<uint32_t>();
    number.value = reader.take<int64_t>();
    if (number.kind >= Kind::kAdd && (number.a >= i || number.b >= i)) {
      damaged("a size is computed from one that comes later");
    }
    numbers.push_back(number);
  }
  return numbers;
}

int64_t calculate(Kind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  bool too_large = false;
  switch (kind) {
    case Kind::kAdd: too_large = __builtin_add_overflow(a, b, &result); break;
    case Kind::kSubtract: too_large = __builtin_sub_overflow(a, b, &result); break;
    case Kind::kMultiply: too_large = __builtin_mul_overflow(a, b, &result); break;
    case Kind::kMaximum: return std::max(a, b);
    case Kind::kMinimum: return std::min(a, b);
    default:
      if (b == 0) {
        refuse("is divided by 0");
      }
      // The processor cannot divide the smallest number by -1.
      if (b == -1) {
        return kind == Kind::kModulo ? 0 : calculate(Kind::kSubtract, 0, a);
      }
      result = floor_divide(a, b);
      return kind == Kind::kModulo ? a - result * b : result;
  }
  if (too_large) {
    refuse("does not fit 64 bits");
  }
  return result;
}

}  // namespace fusewheel::engine
