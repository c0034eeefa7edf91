// FedEdge's fused ops on the device: their CUDA device code, run by emulated warps and blocks.
#include <torch/library.h>

#include <vector>

#include "arena.h"
#include "ledger.h"
#include "ops/device_rows.h"
#include "ops/distillation_op.h"
#include "ops/label_loss_op.h"
#include "ops/probability_sums_op.h"
#include "ops/vector_ops.h"
#include "team.h"

namespace emulated {
namespace {

using namespace fededge;

// Grids as in csrc/cuda/row_launch.cuh.
template <class Way, class Kernel>
class Grid {
 public:
  using T = typename Kernel::Real;

  Grid(const RowJob<T>& job, const Kernel& kernel, void* global)
      : job_(job), kernel_(kernel), global_(static_cast<T*>(global)) {}

  void run() {
    for (int64_t block = plan_.blocks - 1; block >= 0; --block) {  // in no promised order
      std::vector<double> shared(plan_.shared / sizeof(double) + 1, Constants<double>::infinity());
      plan_.narrow ? narrow(block, shared.data()) : wide(block, shared.data());
    }
  }

 private:
  // Rows that a warp computes alone.
  void narrow(int64_t block, double* shared) {
    static thread_local Team warp(RowPlan::kWarp, RowPlan::kWarp, 1);
    for (int i = RowPlan::kWarps - 1; i >= 0; --i) {
      T* const scratch = reinterpret_cast<T*>(shared) + int64_t{i} * Kernel::kKept * job_.columns;
      run(warp, block * RowPlan::kWarps + i, plan_.blocks * RowPlan::kWarps, scratch);
    }
  }

  void wide(int64_t block, double* shared) {
    static thread_local Team whole(RowPlan::kBlock, RowPlan::kWarp, 2);
    T* const own = reinterpret_cast<T*>(shared + RowPlan::kBlock);
    T* const kept = plan_.scratch == 0 ? own : global_ + block * Kernel::kKept * job_.columns;
    run(whole, block, plan_.blocks, kept);
  }

  void run(Team& team, int64_t first, int64_t step, T* scratch) {
    team.run([&](int number) {
      const BlockExchange<Thread> exchange{{&team, number}};
      Way::run(kernel_, job_, exchange, first, step, scratch);
    });
  }

  const RowJob<T>& job_;
  const Kernel& kernel_;
  T* global_;
  const RowPlan plan_ = plan_of<Way, Kernel>(job_);
};

struct Launcher {
  static volatile int64_t& outside() {
    static volatile int64_t label = RowJob<float>::kInside;
    return label;
  }

  template <class Way, class Kernel>
  static void launch(const RowJob<typename Kernel::Real>& job, const Kernel& kernel, void* scratch,
                     const at::Tensor&) {
    if (plan_of<Way, Kernel>(job).blocks == 0) return;  // a grid without blocks is an error
    count_launch();
    const Arena::Open open;
    Grid<Way, Kernel>(job, kernel, scratch).run();
  }
};

using Losses = DeviceRows<Launcher>;

// Grids as in csrc/cuda/span_launch.cu. Threads touch different elements and never meet.
struct Vectors {
  template <class Span>
  static void for_each(const at::Tensor& written, const Span& span) {
    const int64_t n = written.numel();
    if (n == 0) return;  // a grid without blocks is an error
    count_launch();
    const int64_t threads = SpanPlan::kThreads * SpanPlan::blocks(n);
    const Arena::Open open;
    for (int64_t i = threads - 1; i >= 0; --i) stride_over(span, n, i, threads);
  }
};

TORCH_LIBRARY_IMPL(fededge, PrivateUse1, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_op::label_loss<Losses>));
  m.impl("distillation_forward", TORCH_FN(distillation_op::distillation<Losses>));
  m.impl("probability_sums_", TORCH_FN(probability_sums_op::probability_sums_<Losses>));
  register_vectors<Vectors>(m);
}

}  // namespace
}  // namespace emulated
