// The row kernels as a device runs them: by the threads of a warp or of a block together.
#include "kernels/distillation.h"
#include "kernels/grid.h"
#include "kernels/label_loss.h"
#include "kernels/mean.h"
#include "kernels/probability_sums.h"
#include "team.h"

using namespace fededge;

namespace {

// How the rows are shared out, and in what order the threads take their turns; as C passes it.
struct Shape {
  int threads;  // that have a row together
  int warp;     // how many of them are a warp
  int64_t groups;
  int64_t seed;
};

// 0, or 1 if the threads did not all come to every exchange.
template <class Way, class Kernel>
int play(const Kernel& kernel, const RowJob<typename Kernel::Real>& job, const Shape& shape) {
  try {
    for (int64_t group = shape.groups - 1; group >= 0; --group) {
      emulated::Team team(shape.threads, shape.warp, static_cast<uint64_t>(shape.seed + group));
      const std::unique_ptr<typename Kernel::Real[]> scratch(
          new typename Kernel::Real[Kernel::kKept * job.columns]);
      team.run([&](int number) {
        const BlockExchange<emulated::Thread> exchange{{&team, number}};
        Way::run(kernel, job, exchange, group, shape.groups, scratch.get());
      });
    }
  } catch (const std::logic_error&) {
    return 1;
  }
  return 0;
}

template <typename T>
int label_loss(void* const* at, const int64_t* strides, const double* numbers, int64_t labellings,
               const RowJob<T>& job, const Shape& shape) {
  const auto matrix = [&](int i) {
    return Matrix<const T>{static_cast<const T*>(at[i]), strides[i]};
  };
  LabelLoss<T> loss{};
  loss.z = matrix(0);
  loss.scale = matrix(1);
  loss.added = matrix(2);
  loss.added_scale = matrix(3);
  loss.shift = matrix(4);
  loss.factor = matrix(5);
  loss.target = matrix(6);
  loss.dz = {static_cast<T*>(at[7]), job.columns};
  loss.dadded = {static_cast<T*>(at[8]), job.columns};
  for (int i = 0; i < 2; ++i) {
    loss.label[i] = static_cast<const int64_t*>(at[9 + i]);
    loss.share[i] = static_cast<T>(numbers[i]);
  }
  loss.labellings = static_cast<int>(labellings);
  loss.weight = static_cast<T>(numbers[2]);
  loss.flat = static_cast<T>(numbers[3]);
  loss.soft = static_cast<T>(numbers[4]);
  loss.log_others = static_cast<T>(numbers[5]);
  loss.mean = T(1) / static_cast<T>(job.rows);
  return play<EachRow>(loss, job, shape);
}

}  // namespace

extern "C" {

int label_loss_float(void* const* at, const int64_t* strides, const double* numbers,
                     int64_t labellings, const RowJob<float>* job, const Shape* shape) {
  return label_loss(at, strides, numbers, labellings, *job, *shape);
}

int label_loss_double(void* const* at, const int64_t* strides, const double* numbers,
                      int64_t labellings, const RowJob<double>* job, const Shape* shape) {
  return label_loss(at, strides, numbers, labellings, *job, *shape);
}

int distillation_double(const double* z, int64_t stride, const double* teacher, double* dz,
                        const int64_t* label, double temperature, const RowJob<double>* job,
                        const Shape* shape) {
  const Distillation<double> loss{{z, stride}, {teacher, job->columns}, {dz, job->columns}, label,
                                  temperature, 1.0 / job->rows};
  return play<EachRow>(loss, *job, *shape);
}

int probability_sums_float(const float* z, int64_t stride, double* num, double* den,
                           const int64_t* label, const int64_t* other, double share,
                           double other_share, const RowJob<float>* job, const Shape* shape) {
  const ProbabilitySums<float> sums{{z, stride},    {num, job->columns},  {den, 1},
                                    {label, other}, {share, other_share}, other == nullptr ? 1 : 2,
                                    nullptr};
  return play<EachClass>(sums, *job, *shape);
}

int mean_float(const float* results, const RowJob<double>* job, const Shape* shape) {
  return play<EachRow>(Mean<float>{results}, *job, *shape);
}

// Threads of which one stays away from the second of two swaps.
int stay_away(int threads, int warp) {
  emulated::Team team(threads, warp, 0);
  try {
    team.run([&](int number) {
      const BlockExchange<emulated::Thread> exchange{{&team, number}};
      exchange.swap(number, 1);
      if (number != 0) exchange.swap(number, 1);
    });
  } catch (const std::logic_error&) {
    return 1;
  }
  return 0;
}

// RowPlan::of, as four numbers.
void row_plan(int64_t rows, int columns, int64_t kept_bytes, int64_t* out) {
  const RowPlan plan = RowPlan::of(rows, columns, kept_bytes);
  out[0] = plan.narrow ? 1 : 0;
  out[1] = plan.blocks;
  out[2] = plan.shared;
  out[3] = plan.scratch;
}

}  // extern "C"
