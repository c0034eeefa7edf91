// The CPU's convolution and its gradients without torch: prints a hash of each at every shape.
//
// FEDEDGE_REGISTER says of how many bytes the registers are. All lies in memory of exactly its
// size, so that a sanitizer sees every step beyond it.
#include "cpu/convolution/convolution_backward_loops.h"
#include "cpu/convolution/convolution_loops.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "drawing.h"

using namespace fededge::cpu;

namespace {

struct Shape {
  int channels, outputs, kernel_rows, kernel_columns, rows, columns;

  int row() const { return (2 * columns + kernel_columns - 1) * channels; }
  int height() const { return 2 * rows + kernel_rows - 1; }
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

void print(const Shape& s, const char* what, const Hash& hash) {
  std::printf("%d to %d, kernel %dx%d, %dx%d, %s: %016llx\n", s.channels, s.outputs, s.kernel_rows,
              s.kernel_columns, s.rows, s.columns, what,
              static_cast<unsigned long long>(hash.value));
}

std::vector<float> without_nan(std::vector<float> from) {
  for (float& x : from) {
    if (x != x) x = -1;  // whose bits are anything
  }
  return from;
}

void forward(const Shape& s, bool spoiled) {
  Draw draw{static_cast<uint64_t>(s.channels * 1000 + s.outputs)};
  const int taps = s.kernel_rows * s.kernel_columns * s.channels;
  std::vector<float> image = numbers(draw, s.height() * s.row());
  if (spoiled) image[image.size() / 2] = std::nanf("");
  const std::vector<float> weight = packed(numbers(draw, s.outputs * taps), s.outputs, taps);
  const std::vector<float> bias = packed(numbers(draw, s.outputs), s.outputs, 1);
  std::vector<float> out(s.rows * s.columns * s.outputs), again(out.size());
  std::vector<uint8_t> where(out.size());
  const Convolution layer{s.channels, s.outputs, s.kernel_rows, s.kernel_columns, s.row(),
                          s.rows,     s.columns, weight.data(), bias.data()};
  convolve<FEDEDGE_REGISTER>(layer, image.data(), out.data(), nullptr);
  convolve<FEDEDGE_REGISTER>(layer, image.data(), again.data(), where.data());
  Hash hash;
  hash.add(without_nan(out));
  hash.add(without_nan(again));
  hash.add(where);
  print(s, "forward", hash);
}

Patches patches_of(const Shape& s) {
  const int64_t run = s.kernel_columns * s.channels;
  return {s.kernel_rows, run, s.row(), (run + kWidest - 1) / kWidest * kWidest};
}

// Rows of the weights and of their gradient: beyond the end of a row there may be anything.
void add_rows(const Patches& p, const std::vector<float>& from, Hash& hash) {
  for (auto row = from.begin(); row != from.end(); row += p.stride) {
    hash.add(without_nan({row, row + p.run}));
  }
}

// A channel's slopes, at about half of the places.
void weight_gradient(const Shape& s, Hash& hash) {
  Draw draw{static_cast<uint64_t>(s.channels * 1000 + s.outputs)};
  const Patches patches = patches_of(s);
  const std::vector<float> image = numbers(draw, s.height() * s.row() + kWidest);
  std::vector<int32_t> at;
  std::vector<float> value;
  for (int y = 0; y < 2 * s.rows; ++y) {
    for (int x = 0; x < 2 * s.columns; ++x) {
      const float slope = static_cast<float>(draw.number());
      if (draw.label(2) == 0) continue;
      at.push_back(y * s.row() + x * s.channels);
      value.push_back(slope);
    }
  }
  std::vector<float> out(s.kernel_rows * patches.stride);
  const Slopes slopes{at.data(), value.data(), static_cast<int64_t>(at.size())};
  add_to_weight<FEDEDGE_REGISTER>(patches, slopes, image.data(), out.data());
  add_rows(patches, out, hash);
}

// The slopes of all channels, at about half of the places. One is infinite and must stay within its
// patch.
void image_gradient(const Shape& s, Hash& hash) {
  Draw draw{static_cast<uint64_t>(s.channels * 1000 + s.outputs)};
  const Patches patches = patches_of(s);
  const std::vector<float> weight = numbers(draw, s.outputs * s.kernel_rows * patches.stride);
  std::vector<float> value = numbers(draw, s.rows * s.columns * s.outputs);
  std::vector<uint8_t> where(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    where[i] = static_cast<uint8_t>(draw.label(kNone + 1));
    if (where[i] == kNone || draw.label(2)) value[i] = 0;
  }
  where[value.size() / 2] = 0;
  value[value.size() / 2] = INFINITY;
  std::vector<Tap> scratch(4 * s.outputs);
  std::vector<float> out(s.height() * s.row() + kWidest);
  const Cells cells{s.rows, s.columns, s.outputs, s.channels, where.data(), value.data()};
  add_to_image<FEDEDGE_REGISTER>(patches, cells, weight.data(), scratch.data(), out.data());
  hash.add(without_nan(out));
}

void backward(const Shape& s) {
  Hash hash;
  weight_gradient(s, hash);
  image_gradient(s, hash);
  print(s, "backward", hash);
}

}  // namespace

int main() {
  // Around the widths of registers and of what is computed at once.
  const Shape shapes[] = {{1, 16, 5, 5, 3, 12}, {16, 16, 5, 5, 2, 4}, {3, 6, 3, 3, 1, 7},
                          {2, 33, 1, 1, 2, 13}, {5, 1, 2, 4, 2, 1},   {17, 17, 3, 1, 1, 5},
                          {1, 8, 1, 3, 2, 6},   {4, 15, 4, 2, 1, 25}};
  for (const Shape& shape : shapes) {
    forward(shape, false);
    backward(shape);
  }
  forward(shapes[1], true);
  backward({3, 1, 11, 6, 2, 3});  // more rows than are summed up at once
  backward({40, 3, 2, 5, 1, 2});  // longer rows
}
