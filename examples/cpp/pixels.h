// Preprocessing by the rule of docs/apps.md: bit-identical to the pixels that the device was
// trained on.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

struct Picture {
  int width, height;
  std::vector<uint8_t> rgb;  // three bytes a pixel, row by row
};

struct Shape {
  int channels, height, width;
};

namespace rule {

constexpr int kBits = 22;  // weights are whole numbers of 2^-22, so that all sums are exact

using Plane = std::vector<uint8_t>;

struct Window {
  int first;
  std::vector<int32_t> weights;
};

// For each new pixel of a row: the first old pixel with a weight, and the weights from there on. The
// filter is a triangle that reaches zero at the distance of one new pixel, and at least one old one.
inline std::vector<Window> windows(int length, double covered, int size) {
  const double start = (length - covered) / 2;
  const float left = static_cast<float>(start), right = static_cast<float>(start + covered);
  const double step = static_cast<double>(right - left) / size, reach = std::max(step, 1.0);
  std::vector<Window> found;
  for (int number = 0; number < size; number++) {
    const double centre = left + (number + 0.5) * step;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + reach + 0.5), length);
    std::vector<double> shares;
    double sum = 0;
    for (int i = first; i < end; i++) {
      shares.push_back(std::max(1 - std::abs((i - centre + 0.5) / reach), 0.0));
      sum += shares.back();
    }
    Window window{first, {}};
    for (double share : shares)
      window.weights.push_back(static_cast<int32_t>(share / sum * (1 << kBits) + 0.5));
    found.push_back(std::move(window));
  }
  return found;
}

// Scale the rows of a plane and transpose it: done twice, both directions are scaled.
inline Plane scaled(const Plane& plane, int rows, const std::vector<Window>& windows) {
  const size_t columns = plane.size() / rows;
  Plane turned(windows.size() * rows);
  for (size_t column = 0; column < windows.size(); column++) {
    const auto& [first, weights] = windows[column];
    for (int row = 0; row < rows; row++) {
      int64_t sum = 1 << (kBits - 1);
      for (size_t i = 0; i < weights.size(); i++)
        sum += int64_t{weights[i]} * plane[row * columns + first + i];
      turned[column * rows + row] = static_cast<uint8_t>(std::min<int64_t>(sum >> kBits, 255));
    }
  }
  return turned;
}

inline Plane plane(const Picture& picture, int channels, int channel) {
  Plane out(picture.rgb.size() / 3);
  for (size_t i = 0; i < out.size(); i++) {
    const uint8_t* p = &picture.rgb[3 * i];
    out[i] = channels == 1 ? (19595 * p[0] + 38470 * p[1] + 7471 * p[2] + 32768) >> 16 : p[channel];
  }
  return out;
}

}  // namespace rule

// The picture's centre, scaled to the model's size: [channels, height, width].
inline std::vector<uint8_t> pixels(const Picture& picture, Shape shape) {
  const double wide = picture.width, high = picture.height;
  const auto across = rule::windows(
      picture.width, std::min(wide, high * shape.width / shape.height), shape.width);
  const auto down = rule::windows(
      picture.height, std::min(high, wide * shape.height / shape.width), shape.height);
  std::vector<uint8_t> all;
  for (int channel = 0; channel < shape.channels; channel++) {
    const auto rows = rule::scaled(rule::plane(picture, shape.channels, channel), picture.height, across);
    const auto both = rule::scaled(rows, shape.width, down);
    all.insert(all.end(), both.begin(), both.end());
  }
  return all;
}
