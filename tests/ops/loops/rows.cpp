// The CPU's row loops without torch: prints a hash of what every kernel gives at every shape.
//
// FEDEDGE_REGISTER says of how many bytes the registers are. Inputs lie in memory of exactly their
// size, so that a sanitizer sees every step beyond it.
#include "cpu/rows/row_loops.h"

#include <cstdio>
#include <vector>

#include "drawing.h"

using namespace fededge;
using namespace fededge::cpu;

namespace {

using T = float;

// All that a row kernel may read, for one shape.
struct Inputs {
  int64_t rows;
  int columns;
  std::vector<T> z, added, target, scale, added_scale, shift, factor;
  std::vector<int64_t> label, other;

  Inputs(Draw draw, int64_t rows, int columns) : rows(rows), columns(columns) {
    z = numbers(draw, rows * columns);
    added = numbers(draw, rows * columns);
    target = numbers(draw, rows * columns);
    for (T& x : target) x = x > 0 ? x : 0;
    scale = numbers(draw, columns);
    added_scale = numbers(draw, columns);
    shift = numbers(draw, int64_t{columns} * columns);
    for (int64_t i = 0; i < rows; ++i) {
      label.push_back(draw.label(columns));
      other.push_back(draw.label(columns));
    }
    // e^shift need not be exact here, and what libm gives is not the same everywhere.
    for (const T x : shift) factor.push_back(fededge::exp(x));
  }
};

template <class Kernel>
double run(const Kernel& kernel, int64_t rows, int columns) {
  std::vector<typename Kernel::Real> scratch(scratch_size<Kernel>(columns));
  return sum_rows<FEDEDGE_REGISTER>(kernel, 0, rows, columns, scratch.data());
}

enum Part {
  kScale = 1,
  kAdded = 2,
  kRow = 4,
  kTable = 8,
  kTarget = 16,
  kFlat = 32,
  kFactor = 64,
  kAddedScale = 128
};

void label_loss(const Inputs& in, int parts, int labellings) {
  std::vector<T> dz(in.z.size()), dadded(in.z.size());
  LabelLoss<T> loss{};
  loss.z = {in.z.data(), in.columns};
  if (parts & kScale) loss.scale = {in.scale.data(), 0};
  if (parts & kAdded) loss.added = {in.added.data(), in.columns};
  if (parts & kAddedScale) loss.added_scale = {in.added_scale.data(), 0};
  if (parts & (kRow | kTable)) loss.shift = {in.shift.data(), parts & kRow ? 0 : in.columns};
  if (parts & kFactor) loss.factor = {in.factor.data(), loss.shift.stride};
  if (parts & kTarget) loss.target = {in.target.data(), in.columns};
  loss.dz = {dz.data(), in.columns};
  const bool apart = (parts & kAdded) && (parts & (kScale | kFlat | kAddedScale));
  if (apart) loss.dadded = {dadded.data(), in.columns};
  loss.label[0] = in.label.data();
  loss.label[1] = in.other.data();
  loss.share[0] = labellings == 2 ? T(0.25) : T(1);
  loss.share[1] = T(0.75);
  loss.labellings = labellings;
  loss.weight = T(1.5);
  loss.soft = T(0.5);
  loss.flat = parts & kFlat ? T(1) : T(0);
  loss.mean = T(1) / static_cast<T>(in.rows);
  loss.log_others = fededge::log(static_cast<T>(in.columns - 1));
  const double total = run(loss, in.rows, in.columns);
  Hash hash;
  hash.add(dz);
  hash.add(dadded);
  hash.add(std::vector<double>{total});
  std::printf("label_loss %lldx%d parts %d of %d: %016llx\n", static_cast<long long>(in.rows),
              in.columns, parts, labellings, static_cast<unsigned long long>(hash.value));
}

void others(const Inputs& in) {
  std::vector<T> dz(in.z.size());
  Hash hash;
  for (const int64_t* label : {static_cast<const int64_t*>(nullptr), in.label.data()}) {
    const Distillation<T> loss{{in.z.data(), in.columns},
                               {in.added.data(), in.columns},
                               {dz.data(), in.columns},
                               label,
                               T(2),
                               T(1) / T(in.rows)};
    hash.add(std::vector<double>{run(loss, in.rows, in.columns)});
    hash.add(dz);
  }
  std::vector<double> num(in.shift.size()), den(in.columns);
  const ProbabilitySums<T> sums{{in.z.data(), in.columns},
                                {num.data(), in.columns},
                                {den.data(), 1},
                                {in.label.data(), in.other.data()},
                                {0.25, 0.75},
                                2,
                                nullptr};
  run(sums, in.rows, in.columns);
  ProbabilitySums<T> backwards = sums;
  std::vector<int64_t> order(in.rows);
  for (int64_t i = 0; i < in.rows; ++i) order[i] = in.rows - 1 - i;
  backwards.order = order.data();
  run(backwards, in.rows, in.columns);
  hash.add(num);
  hash.add(den);
  std::printf("others %lldx%d: %016llx\n", static_cast<long long>(in.rows), in.columns,
              static_cast<unsigned long long>(hash.value));
}

void all(int64_t rows, int columns) {
  const Inputs in(Draw{static_cast<uint64_t>(rows * 1000 + columns)}, rows, columns);
  const int flattened = kFlat | kTable | kFactor;
  for (const int parts : {0, +kScale, +kAdded, +kRow, +kTable, kTable | kTarget, kScale | kAdded,
                          kAdded | kAddedScale, flattened, kFlat | kTable,
                          kFlat | kAdded | kAddedScale | kScale | kRow | kTarget}) {
    for (const int labellings : {1, 2}) label_loss(in, parts, labellings);
  }
  label_loss(in, kTarget | kRow, 0);
  others(in);
}

}  // namespace

int main() {
  // Around the widths of packs, and where one kind of lanes takes over from the other.
  const int shapes[][2] = {{1, 2},   {7, 10},  {16, 10}, {17, 31}, {33, 16}, {5, 32},
                           {18, 33}, {19, 62}, {4, 64},  {9, 100}, {3, 257}};
  for (const auto& shape : shapes) all(shape[0], shape[1]);
}
