// Threads of a device played on the CPU: each is a fiber, and one at a time runs.
//
// Which one runs next is drawn at every point where they wait for each other, so that code which
// relies on an order that a device does not promise gives other numbers with other seeds. Threads
// that do not all come to the same meeting are found out.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace emulated {

// The fibers of one block.
class Team {
 public:
  static constexpr size_t kStack = 64 * 1024;

  Team(int threads, int warp, uint64_t seed)
      : threads_(threads),
        warp_(warp),
        random_(seed),
        warps_(threads / warp),
        slots_(threads * 8) {}

  int threads() const { return threads_; }
  int warp() const { return warp_; }

  // Runs the body once as each thread, until all have returned.
  void run(const std::function<void(int)>& body) {
    body_ = &body;
    fibers_.clear();
    for (int i = 0; i < threads_; ++i) start(i);
    while (true) {
      const std::vector<int> ready = runnable();
      if (ready.empty()) break;
      current_ = ready[random_() % ready.size()];
      swapcontext(&scheduler_, &fibers_[current_]->context);
    }
    for (const auto& fiber : fibers_) {
      if (!fiber->done) throw std::logic_error("the threads do not all come to the same meetings");
    }
  }

  // Waits until all threads of the thread's warp, or of the block, have come here.
  void meet_warp() { meet(warps_[current_ / warp_], warp_); }
  void meet_block() { meet(block_, threads_); }

  // Memory that the block's threads share: 8 bytes for each of them.
  char* slot(int i) { return slots_.data() + 8 * i; }

  // A warp's shuffle: everyone shows x, then looks.
  template <typename T>
  T shuffle(T x, int mask) {
    Fiber& me = *fibers_[current_];
    std::memcpy(me.shown, &x, sizeof(T));
    meet_warp();
    T other;
    std::memcpy(&other, fibers_[current_ ^ mask]->shown, sizeof(T));
    meet_warp();
    return other;
  }

 private:
  struct Meeting {
    int arrived = 0;
    int64_t held = 0;
  };

  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};
    Meeting* waits = nullptr;
    int64_t for_number = 0;
    bool done = false;
    char shown[8];
  };

  void start(int i) {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler_;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Team::enter), 3, i,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  }

  static void enter(int i, unsigned high, unsigned low) {
    Team& team = *reinterpret_cast<Team*>(static_cast<uintptr_t>(high) << 32 | low);
    (*team.body_)(i);
    team.fibers_[i]->done = true;
  }

  std::vector<int> runnable() const {
    std::vector<int> out;
    for (int i = 0; i < threads_; ++i) {
      const Fiber& fiber = *fibers_[i];
      const bool waits = fiber.waits != nullptr && fiber.waits->held < fiber.for_number;
      if (!fiber.done && !waits) out.push_back(i);
    }
    return out;
  }

  void meet(Meeting& meeting, int expected) {
    Fiber& me = *fibers_[current_];
    me.waits = &meeting;
    me.for_number = meeting.held + 1;
    if (++meeting.arrived == expected) {
      meeting.arrived = 0;
      ++meeting.held;
    }
    swapcontext(&me.context, &scheduler_);  // the last one too: another may go first
    me.waits = nullptr;
  }

  int threads_;
  int warp_;
  std::mt19937_64 random_;
  std::vector<Meeting> warps_;
  Meeting block_;
  std::vector<char> slots_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_;
  const std::function<void(int)>* body_ = nullptr;
  int current_ = 0;
};

// What csrc/kernels/exchange.h asks of a thread.
struct Thread {
  Team* team;
  int index;

  int number() const { return index; }
  int threads() const { return team->threads(); }
  int warp() const { return team->warp(); }
  void barrier() const { team->meet_block(); }

  template <typename T>
  T shuffle(T x, int mask) const {
    return team->shuffle(x, mask);
  }

  template <typename T>
  T& slot(int i) const {
    return *reinterpret_cast<T*>(team->slot(i));
  }
};

}  // namespace emulated
