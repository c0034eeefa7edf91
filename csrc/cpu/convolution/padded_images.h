// Images in the layout that the loops of a convolution read.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace fededge::cpu {

// Zeros that start at a cache line: a register that spans two lines is slow to load and to store.
inline at::Tensor zeros(int64_t count) {
  at::Tensor out = at::detail::empty_cpu({count}, at::kFloat);
  std::fill_n(out.mutable_data_ptr<float>(), count, 0.0f);
  return out;
}

// A buffer of zeros with the same alignment, for use by one thread.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t size = 0) : size_(size) {
    if (size == 0) return;
    owner_ = zeros(size);
    data_ = owner_.mutable_data_ptr<float>();
  }

  float* data() { return data_; }
  const float* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  at::Tensor owner_;
  float* data_ = nullptr;
  int64_t size_;
};

// The images of a batch with adjacent channels, a border of `padding` zeros, and at least `after`
// readable floats behind each. An image is copied only if it is not laid out like that already.
class PaddedImages {
 public:
  PaddedImages(const at::Tensor& x, int64_t padding, int64_t row, int64_t after = 0)
      : x_(x), padding_(padding), row_(row) {
    const int64_t channels = x.size(1), columns = x.size(3), size = x.size(2) * columns * channels;
    whole_rows_ = (channels == 1 || x.stride(1) == 1) && x.stride(3) == channels;
    const bool whole = whole_rows_ && x.stride(2) == columns * channels;
    const bool adjacent = x.size(0) == 1 || x.stride(0) == size;
    if (padding == 0 && whole && (after == 0 || (adjacent && after <= size))) {
      // The floats behind an image are those of the next one. The last image has no next one.
      in_place_ = after == 0 ? x.size(0) : x.size(0) - 1;
    }
    copy_size_ = (x.size(2) + 2 * padding) * row_ + after;
  }

  const float* image(int64_t i) {
    const float* const from = x_.const_data_ptr<float>() + i * x_.stride(0);
    if (i < in_place_) return from;
    if (copy_.size() == 0) copy_ = AlignedFloats(copy_size_);
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
  int64_t row_;           // floats in a row, with its border
  int64_t in_place_ = 0;  // images from the first on that need no copy
  bool whole_rows_;
  int64_t copy_size_;
  AlignedFloats copy_;
};

}  // namespace fededge::cpu
