// Images as the loops of a convolution read them.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

namespace fededge::cpu {

// Zeros that begin where a line of the cache does: a register that lies across two is slow to load.
inline at::Tensor zeros(int64_t count) {
  at::Tensor out = at::detail::empty_cpu({count}, at::kFloat);
  std::fill_n(out.mutable_data_ptr<float>(), count, 0.0f);
  return out;
}

// Images whose channels lie side by side, with a border of zeros and so many numbers after the last:
// as they are where they are so already, else copied one at a time.
class Images {
 public:
  Images(const at::Tensor& x, int64_t padding, int64_t row, int64_t after = 0)
      : x_(x), padding_(padding), row_(row) {
    const int64_t channels = x.size(1), columns = x.size(3);
    whole_rows_ = (channels == 1 || x.stride(1) == 1) && x.stride(3) == channels;
    const bool whole = whole_rows_ && x.stride(2) == columns * channels;
    as_they_are_ = padding == 0 && after == 0 && whole;
    if (!as_they_are_) copy_.resize((x.size(2) + 2 * padding) * row_ + after);
  }

  const float* image(int64_t i) {
    const float* const from = x_.const_data_ptr<float>() + i * x_.stride(0);
    if (as_they_are_) return from;
    for (int64_t y = 0; y < x_.size(2); ++y) {
      float* const to = copy_.data() + (y + padding_) * row_ + padding_ * x_.size(1);
      copy_row(from + y * x_.stride(2), to);
    }
    return copy_.data();
  }

 private:
  void copy_row(const float* from, float* to) const {
    const int64_t channels = x_.size(1), columns = x_.size(3);
    if (whole_rows_) {
      std::copy_n(from, columns * channels, to);
      return;
    }
    for (int64_t x = 0; x < columns; ++x) {
      for (int64_t c = 0; c < channels; ++c) *to++ = from[x * x_.stride(3) + c * x_.stride(1)];
    }
  }

  const at::Tensor& x_;
  int64_t padding_;
  int64_t row_;  // numbers in a row with its border
  bool whole_rows_;
  bool as_they_are_;
  std::vector<float> copy_;
};

}  // namespace fededge::cpu
