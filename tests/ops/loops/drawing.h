// Numbers that are the same on every processor, and a hash of results.
#pragma once

#include <cstdint>
#include <vector>

struct Draw {
  uint64_t state;

  uint64_t next() { return state = state * 6364136223846793005ull + 1442695040888963407ull; }
  double number() { return static_cast<double>(next() >> 40) / (1 << 21) - 4; }  // from -4 to 4
  int64_t label(int64_t classes) { return static_cast<int64_t>((next() >> 33) % classes); }
};

inline std::vector<float> numbers(Draw& draw, int64_t count) {
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(draw.number());
  return out;
}

struct Hash {
  uint64_t value = 1469598103934665603ull;

  template <typename T>
  void add(const std::vector<T>& data) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
    for (size_t i = 0; i < data.size() * sizeof(T); ++i) {
      value = (value ^ bytes[i]) * 1099511628211ull;
    }
  }
};
