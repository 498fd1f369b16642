// Divisor against the compiler's division, at the edges of both operands and in between.

#include <cstdio>
#include <random>
#include <vector>

#include "common/divide.h"

int main() {
  std::mt19937_64 random(1);
  std::vector<int64_t> numbers = {1, 2, 3, 7, 255, 256, 257};
  for (int shift = 8; shift < 63; ++shift) {
    const int64_t power = int64_t{1} << shift;
    numbers.insert(numbers.end(), {power - 1, power, power + 1});
    numbers.push_back(static_cast<int64_t>(random() >> (63 - shift)) + 1);
  }
  numbers.push_back(INT64_MAX);
  for (const int64_t divisor : numbers) {
    const fusewheel::Divisor by(divisor);
    for (const int64_t number : numbers) {
      for (const int64_t n : {number - 1, number, number / divisor * divisor}) {
        if (by.divide(n) != static_cast<uint64_t>(n / divisor)) {
          std::printf("%lld / %lld\n", static_cast<long long>(n), static_cast<long long>(divisor));
          return 1;
        }
      }
    }
  }
}
