#include "program.h"

#include <fusewheel/geometry.h>

#include <array>

#include "lifetimes.h"
#include "neighbours.h"
#include "pointers.h"

namespace fusewheel::engine {

namespace {

constexpr std::string_view kMagic = "FUSEWHEL";
constexpr int32_t kDtypes = 47;  // those that torch has a number for

// That of zlib.
uint32_t crc32(Reader bytes) {
  std::array<uint32_t, 256> table;
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t entry = i;
    for (int bit = 0; bit < 8; ++bit) {
      entry = entry >> 1 ^ (entry & 1 ? 0xEDB88320u : 0);
    }
    table[i] = entry;
  }
  uint32_t sum = ~0u;
  while (bytes.left() > 0) {
    sum = sum >> 8 ^ table[(sum ^ bytes.take<uint8_t>()) & 0xFF];
  }
  return ~sum;
}

// A name as an error can show it.
std::string printable(std::string_view name) {
  std::string out;
  for (const char letter : name.substr(0, 100)) {
    out += letter >= ' ' && letter <= '~' ? letter : '?';
  }
  return out;
}

void read_header(Reader& reader, size_t size) {
  std::array<char, 8> magic = {};
  if (reader.left() >= magic.size()) {
    magic = reader.take<std::array<char, 8>>();
  }
  if (std::string_view(magic.data(), magic.size()) != kMagic) {
    throw std::runtime_error("run: program must be a program of fusewheel, got other bytes");
  }
  const auto version = reader.take<uint32_t>();
  if (version != kVersion) {
    throw std::runtime_error("run: program must have version " + std::to_string(kVersion) +
                             ", the one that this release of fusewheel runs, got version " +
                             std::to_string(version));
  }
  const auto zero = reader.take<uint32_t>();
  const auto bytes = reader.take<uint64_t>();
  if (bytes != size) {
    damaged("it says that it has " + std::to_string(bytes) + " bytes, and has " +
            std::to_string(size));
  }
  const auto sum = reader.take<uint32_t>();
  if (zero != 0 || reader.take<uint32_t>() != 0 || sum != crc32(reader)) {
    damaged("its checksum is another");
  }
}

class ProgramReader {
 public:
  explicit ProgramReader(Reader& reader) : reader_(reader) {}

  Program read() {
    program_.numbers = read_numbers(reader_);
    read_values();
    check_numbers();
    const uint32_t texts = reader_.count(4);
    for (uint32_t i = 0; i < texts; ++i) {
      program_.texts.push_back(printable(reader_.text()));
    }
    ready_.assign(program_.values.size(), false);
    std::fill_n(ready_.begin(), program_.inputs, true);
    const uint32_t steps = reader_.count(20);
    for (uint32_t i = 0; i < steps; ++i) {
      read_step();
    }
    read_outputs();
    if (reader_.left() > 0) {
      damaged("bytes follow after its end");
    }
    mark_last_uses(program_);
    mark_neighbours(program_);
    mark_layers(program_);
    mark_pointers(program_);
    mark_tenants(program_);
    return std::move(program_);
  }

 private:
  // The index of something that is there.
  uint32_t index(size_t count, const char* what) {
    const auto number = reader_.take<uint32_t>();
    if (number >= count) {
      damaged(std::string("it names a ") + what + " that it does not have, " +
              std::to_string(number) + " of " + std::to_string(count));
    }
    return number;
  }

  template <typename List>
  void read_indices(uint32_t count, List& to) {
    for (uint32_t i = 0; i < count; ++i) {
      to.push_back(index(program_.numbers.size(), "size"));
    }
  }

  void read_values() {
    program_.inputs = reader_.take<uint32_t>();
    const uint32_t count = reader_.count(20);
    if (program_.inputs > count) {
      damaged("it has more inputs than values");
    }
    for (uint32_t i = 0; i < count; ++i) {
      Value value;
      value.source = static_cast<Source>(index(3, "source of values"));
      if ((value.source == Source::kInput) != (i < program_.inputs)) {
        damaged("its inputs are not its first values");
      }
      value.dtype = static_cast<int32_t>(index(kDtypes, "dtype"));
      const auto rank = reader_.take<uint32_t>();
      if (rank > static_cast<uint32_t>(kMaxDims)) {
        damaged("a value has " + std::to_string(rank) + " dimensions");
      }
      value.of = reader_.take<uint32_t>();
      value.offset = reader_.take<uint32_t>();
      if (value.source != Source::kView) {
        value.of = i;
      } else {
        if (value.of >= i || program_.values[value.of].source == Source::kView ||
            program_.values[value.of].dtype != value.dtype) {
          damaged("a view shows no earlier value of its dtype");
        }
        if (value.offset >= program_.numbers.size()) {
          damaged("it names a size that it does not have");
        }
      }
      read_indices(rank, value.sizes);
      read_indices(rank, value.strides);
      program_.values.push_back(std::move(value));
    }
  }

  void check_numbers() {
    for (const auto& number : program_.numbers) {
      const bool reads = number.kind == Kind::kSize || number.kind == Kind::kStride;
      if (reads && (number.a >= program_.inputs ||
                    number.b >= program_.values[number.a].sizes.size())) {
        damaged("a size is that of an input or dimension that it does not have");
      }
    }
  }

  Use use() {
    const uint32_t value = index(program_.values.size(), "value");
    if (!ready_[program_.values[value].of]) {
      damaged("a step reads a value that no earlier step computes");
    }
    return {value, false, false};
  }

  Argument argument(char expected) {
    const auto letter = static_cast<char>(reader_.take<uint32_t>());
    const bool optional = std::string_view("ONFdm-").find(expected) != std::string_view::npos;
    if (letter != expected && !(optional && letter == '-')) {
      damaged("a step has an argument of another type than its operator takes");
    }
    Argument found{letter, 0, {}, {}};
    switch (letter) {
      case 'T':
      case 'O': found.values.push_back(use()); break;
      case 'L':
        for (uint32_t left = reader_.count(4); left > 0; --left) {
          found.values.push_back(use());
        }
        break;
      case 'i':
      case 'N': read_indices(1, found.integers); break;
      case 'I': read_indices(reader_.count(4), found.integers); break;
      case 'f':
      case 'F': found.number = reader_.take<double>(); break;
      case 'b':
      case 'm': found.integers.push_back(index(2, "choice")); break;
      case 'd': found.integers.push_back(index(kDtypes, "dtype")); break;
      default: break;
    }
    return found;
  }

  void read_step() {
    Step step = {};
    const std::string_view name = reader_.text();
    const std::string_view overload = reader_.text();
    step.callee = find_operator(name, overload);
    if (step.callee == nullptr) {
      throw std::runtime_error(
          "run: a step of the program calls " + printable(name) +
          (overload.empty() ? "" : "." + printable(overload)) +
          ", which programs cannot call here. If it is an operator of another package, import that "
          "package first");
    }
    step.text = index(program_.texts.size(), "line");
    const auto& letters = step.callee->letters;
    if (reader_.take<uint32_t>() != letters.size()) {
      damaged("a step has another number of arguments than its operator");
    }
    for (const char letter : letters) {
      step.arguments.push_back(argument(letter));
    }
    if (reader_.take<uint32_t>() != static_cast<uint32_t>(step.callee->results)) {
      damaged("a step has another number of results than its operator");
    }
    for (int i = 0; i < step.callee->results; ++i) {
      const auto result = reader_.take<uint32_t>();
      if (result != kUnused) {
        if (result >= program_.values.size() || ready_[result] ||
            program_.values[result].source != Source::kResult) {
          damaged("a step's result is no new value");
        }
        ready_[result] = true;
      }
      step.results.push_back(result);
    }
    program_.steps.push_back(std::move(step));
  }

  void read_outputs() {
    const auto shown = reader_.take<uint32_t>();
    if (shown > program_.numbers.size()) {
      damaged("it shows more sizes than it has");
    }
    auto& said = program_.declared;
    said.push_back(shown);
    for (uint32_t i = 0; i < shown; ++i) {
      const auto& number = program_.numbers[i];
      said.insert(said.end(), {static_cast<int64_t>(number.kind), number.a, number.b, number.value});
    }
    const uint32_t count = reader_.count(4);
    said.push_back(count);
    std::vector<bool> named(program_.values.size(), false);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t output = index(program_.values.size(), "value");
      const auto& value = program_.values[output];
      if (value.of < program_.inputs || !ready_[value.of] || named[value.of]) {
        damaged("an output is no result of a step, or two outputs share one");
      }
      named[value.of] = true;
      program_.outputs.push_back(output);
      said.push_back(value.dtype);
      said.push_back(static_cast<int64_t>(value.sizes.size()));
      for (const auto* list : {&value.sizes, &value.strides}) {
        for (const uint32_t number : *list) {
          if (number >= shown) {
            damaged("an output has a size that it does not show");
          }
          said.push_back(number);
        }
      }
    }
  }

  Reader& reader_;
  Program program_;
  std::vector<bool> ready_;  // which values are there, before the step that is being read
};

}  // namespace

Layout layout_of(const Program& program, const std::vector<int64_t>& numbers, uint32_t index) {
  const auto& value = program.values[index];
  Layout found;
  found.rank = static_cast<int64_t>(value.sizes.size());
  found.numel = 1;
  for (size_t i = 0; i < value.sizes.size(); ++i) {
    found.sizes[i] = numbers[value.sizes[i]];
    found.strides[i] = numbers[value.strides[i]];
    if (__builtin_mul_overflow(found.numel, found.sizes[i], &found.numel)) {
      throw std::runtime_error("run: a value of the program has too many elements");
    }
  }
  found.offset = value.source == Source::kView ? numbers[value.offset] : 0;
  return found;
}

std::shared_ptr<const Program> read_program(const uint8_t* bytes, size_t size) {
  Reader reader(bytes, size);
  read_header(reader, size);
  return std::make_shared<const Program>(ProgramReader(reader).read());
}

}  // namespace fusewheel::engine
