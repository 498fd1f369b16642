// One fault of each kind that `nox -s sanitize` must find, and none in `sound`.

#include <cstdint>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int sound(int value) {
  std::vector<int> memory(4, value);
  std::thread other([&] { memory[0] = 1; });
  other.join();
  return memory[0] + memory[3];
}

EXPORT int past_the_end(int value) {
  std::vector<int> memory(4, value);
  return memory.data()[4];
}

EXPORT int overflow(int value) { return value * 0x7fffffff; }

EXPORT int misaligned(int value) {
  std::vector<int> memory(4, value);
  const char* bytes = reinterpret_cast<const char*>(memory.data());
  return *reinterpret_cast<const int*>(bytes + 1);
}

EXPORT int race(int value) {
  int64_t sum = 0;
  const auto add = [&] { sum += value; };
  std::thread one(add);
  std::thread other(add);
  one.join();
  other.join();
  return static_cast<int>(sum);
}
