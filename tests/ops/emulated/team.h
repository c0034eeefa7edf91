// Threads of a device played on the CPU: each is a fiber, and one at a time runs.
//
// Which one runs next is drawn at every point where they wait for each other, so that code which
// relies on an order that a device does not promise gives other numbers with other seeds. Threads
// that do not all come to the same meeting are found out.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace emulated {

// A stack with what runs on it. swapcontext makes a system call at every switch, which takes 50
// times as long as _longjmp; the sanitizers follow swapcontext alone.
class Fiber {
 public:
  static constexpr size_t kStack = 64 * 1024;

  // Without a stack: what runs already.
  Fiber() = default;

  // Runs enter(who, number) when it is first switched to.
  template <class Who>
  Fiber(void (*enter)(unsigned, unsigned, int), Who* who, int number) : stack_(new char[kStack]) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStack;
    context_.uc_link = nullptr;
    const auto address = reinterpret_cast<uintptr_t>(who);
    makecontext(&context_, reinterpret_cast<void (*)()>(enter), 3,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address), number);
  }

  __attribute__((noinline)) void switch_to(Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
    swapcontext(&context_, &to.context_);
#else
    if (_setjmp(at_) != 0) return;
    started_ = true;
    if (to.started_) _longjmp(to.at_, 1);
    setcontext(&to.context_);
#endif
  }

 private:
  ucontext_t context_;
  jmp_buf at_;
  bool started_ = false;
  std::unique_ptr<char[]> stack_;
};

// The threads of one block. It may run many bodies, one after the other, on the same stacks.
class Team {
 public:
  Team(int threads, int warp, uint64_t seed)
      : threads_(threads), warp_(warp), random_(seed), slots_(threads * 8) {}

  int threads() const { return threads_; }
  int warp() const { return warp_; }

  // Runs the body once as each thread, until all have returned.
  void run(const std::function<void(int)>& body) {
    if (fibers_.empty()) begin();
    body_ = &body;
    returned_ = 0;
    for (int i = 0; i < threads_; ++i) ready_.push_back(i);
    next(scheduler_);
    if (returned_ == threads_) return;
    fibers_.clear();  // they wait for ever
    throw std::logic_error("the threads do not all come to the same meetings");
  }

  // Waits until all threads of the thread's warp, or of the block, have come here.
  void meet_warp() { meet(warps_[current_ / warp_], warp_); }
  void meet_block() { meet(block_, threads_); }

  // Memory that the block's threads share: 8 bytes for each of them.
  char* slot(int i) { return slots_.data() + 8 * i; }

  // A warp's shuffle: everyone shows x, then looks.
  template <typename T>
  T shuffle(T x, int mask) {
    const int me = current_;
    std::memcpy(shown_.data() + 8 * me, &x, sizeof(T));
    meet_warp();
    T other;
    std::memcpy(&other, shown_.data() + 8 * (me ^ mask), sizeof(T));
    meet_warp();
    return other;
  }

 private:
  using Meeting = std::vector<int>;  // who has arrived

  void begin() {
    warps_.assign(threads_ / warp_, Meeting());
    block_.clear();
    shown_.resize(threads_ * 8);
    for (int i = 0; i < threads_; ++i) {
      fibers_.push_back(std::make_unique<Fiber>(&Team::enter, this, i));
    }
  }

  static void enter(unsigned high, unsigned low, int number) {
    Team& team = *reinterpret_cast<Team*>(static_cast<uintptr_t>(high) << 32 | low);
    while (true) {
      (*team.body_)(number);
      ++team.returned_;
      team.next(*team.fibers_[number]);
    }
  }

  void meet(Meeting& meeting, int expected) {
    const int me = current_;
    meeting.push_back(me);
    if (static_cast<int>(meeting.size()) == expected) {
      ready_.insert(ready_.end(), meeting.begin(), meeting.end());
      meeting.clear();
    }
    next(*fibers_[me]);  // the last one too: another may go first
  }

  // From `me` to a thread that is drawn from those that can go on, or back to run().
  void next(Fiber& me) {
    Fiber* to = &scheduler_;
    if (!ready_.empty()) {
      int& drawn = ready_[(random_() >> 32) * ready_.size() >> 32];
      current_ = drawn;
      drawn = ready_.back();
      ready_.pop_back();
      to = fibers_[current_].get();
    }
    if (to != &me) me.switch_to(*to);
  }

  int threads_;
  int warp_;
  std::mt19937_64 random_;
  std::vector<Meeting> warps_;
  Meeting block_;
  std::vector<int> ready_;
  std::vector<char> slots_;
  std::vector<char> shown_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber scheduler_;
  const std::function<void(int)>* body_ = nullptr;
  int current_ = 0;
  int returned_ = 0;
};

// The exchange that csrc/kernels/exchange.h asks of a thread.
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
