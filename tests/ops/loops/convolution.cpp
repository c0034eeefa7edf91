// The CPU's convolution without torch: prints a hash of what it gives at every shape.
//
// FEDEDGE_REGISTER says of how many bytes the registers are. All lies in memory of exactly its size,
// so that a sanitizer sees every step beyond it.
#include "cpu/convolution_loops.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "drawing.h"

using namespace fededge::cpu;

namespace {

struct Shape {
  int channels, outputs, kernel_rows, kernel_columns, rows, columns;
};

constexpr int kLanes = FEDEDGE_REGISTER / 4;

// [output][tap], in groups of as many outputs as a register holds.
std::vector<float> packed(const std::vector<float>& from, int outputs, int taps) {
  std::vector<float> out((outputs + kLanes - 1) / kLanes * kLanes * taps);
  for (int o = 0; o < outputs; ++o) {
    for (int t = 0; t < taps; ++t) {
      out[(o / kLanes * taps + t) * kLanes + o % kLanes] = from[o * taps + t];
    }
  }
  return out;
}

void run(const Shape& s, bool spoiled) {
  Draw draw{static_cast<uint64_t>(s.channels * 1000 + s.outputs)};
  const int width = 2 * s.columns + s.kernel_columns - 1;
  const int taps = s.kernel_rows * s.kernel_columns * s.channels;
  std::vector<float> image = numbers(draw, (2 * s.rows + s.kernel_rows - 1) * width * s.channels);
  if (spoiled) image[image.size() / 2] = std::nanf("");
  const std::vector<float> weight = packed(numbers(draw, s.outputs * taps), s.outputs, taps);
  const std::vector<float> bias = packed(numbers(draw, s.outputs), s.outputs, 1);
  std::vector<float> out(s.rows * s.columns * s.outputs);
  const Convolution layer{s.channels, s.outputs, s.kernel_rows, s.kernel_columns,
                          width * s.channels, s.rows, s.columns, weight.data(), bias.data()};
  convolve<FEDEDGE_REGISTER>(layer, image.data(), out.data());
  for (float& x : out) {
    if (x != x) x = -1;  // whose bits are anything
  }
  Hash hash;
  hash.add(out);
  std::printf("%d to %d, kernel %dx%d, %dx%d: %016llx\n", s.channels, s.outputs, s.kernel_rows,
              s.kernel_columns, s.rows, s.columns, static_cast<unsigned long long>(hash.value));
}

}  // namespace

int main() {
  // Around the widths of registers and of what is computed at once.
  const Shape shapes[] = {{1, 16, 5, 5, 3, 12}, {16, 16, 5, 5, 2, 4}, {3, 6, 3, 3, 1, 7},
                          {2, 33, 1, 1, 2, 13}, {5, 1, 2, 4, 2, 1},   {17, 17, 3, 1, 1, 5},
                          {1, 8, 1, 3, 2, 6},   {4, 15, 4, 2, 1, 25}};
  for (const Shape& shape : shapes) run(shape, false);
  run(shapes[1], true);
}
