#include "thread_pool.hpp"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mge {
namespace {

constexpr int SPINS = 2000;            // 20 to 50 us; then a worker parks
constexpr uint64_t MOST = 0xffff;        // pieces of a region
constexpr uint64_t CLOSED = 0xffffffff;  // as many pieces taken as no region has

thread_local bool inside_region = false;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void run_serially(int64_t count, int64_t grain, MgeBody body, void* data) {
  for (int64_t begin = 0; begin < count; begin += grain)
    body(begin, begin + grain < count ? begin + grain : count, 0, data);
}

// The fields of a region are valid while `state_` holds its number. A claim is a compare-and-swap on
// `state_` (number of the region, pieces taken from the back, and from the front), so it fails if the fields that were
// read are stale. The caller takes pieces from the front and workers take them from the back: so in the next layer, and
// in the next run, a processor meets much of the memory that it has in its caches.
class Pool {
 public:
  explicit Pool(int32_t threads) : threads_(threads) {}

  int32_t threads() const { return threads_; }

  bool try_hold() { return !held_.exchange(true, std::memory_order_acquire); }
  void drop() { held_.store(false, std::memory_order_release); }

  void run(int64_t count, int64_t grain, MgeBody body, void* data) {
    if (!started_) start();
    const int64_t chunks = (count - 1) / grain + 1, each = (chunks - 1) / static_cast<int64_t>(MOST) + 1;
    const auto pieces = static_cast<uint32_t>((chunks - 1) / each + 1);
    uint64_t region = (state_.load(std::memory_order_relaxed) >> 32) + 1;
    state_.store(region << 32 | CLOSED, std::memory_order_seq_cst);
    body_.store(body, std::memory_order_release);
    data_.store(data, std::memory_order_release);
    count_.store(count, std::memory_order_release);
    grain_.store(grain, std::memory_order_release);
    each_.store(each * grain, std::memory_order_release);
    pieces_.store(pieces, std::memory_order_release);
    done_.store(0, std::memory_order_relaxed);
    state_.store(region << 32, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> hold(lock_); }
      wake_.notify_all();
    }
    work(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; ++spins)
      spins < SPINS ? pause() : std::this_thread::yield();
  }

  // In the child of a fork, and for a pool that was replaced: its threads are gone, or end.
  void stop() {
    if (!started_) return;
    stopping_.store(true);
    { std::lock_guard<std::mutex> hold(lock_); }
    wake_.notify_all();
    for (int32_t i = 0; i + 1 < threads_; ++i) workers_[i].join();
    delete[] workers_;
    workers_ = nullptr;
  }

 private:
  void start() {
    started_ = true;
    sigset_t all, before;  // signals are for the threads of Python
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    workers_ = new std::thread[threads_ - 1];
    for (int32_t i = 1; i < threads_; ++i) workers_[i - 1] = std::thread([this, i] { loop(i); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  static uint64_t taken(uint64_t state) { return (state & MOST) + (state >> 16 & MOST); }

  // Runs pieces until none is left to claim; returns whether it ran one.
  bool work(int32_t worker) {
    bool ran = false;
    const int side = worker ? 16 : 0;
    uint64_t state = state_.load(std::memory_order_acquire);
    while (true) {
      MgeBody body = body_.load(std::memory_order_acquire);
      void* data = data_.load(std::memory_order_acquire);
      int64_t count = count_.load(std::memory_order_acquire);
      int64_t grain = grain_.load(std::memory_order_acquire);
      int64_t each = each_.load(std::memory_order_acquire);
      uint32_t pieces = pieces_.load(std::memory_order_acquire);
      if (taken(state) >= pieces) return ran;
      if (!state_.compare_exchange_weak(state, state + (1ull << side), std::memory_order_acq_rel)) continue;
      const auto mine = static_cast<int64_t>(state >> side & MOST);
      int64_t begin = (worker ? pieces - 1 - mine : mine) * each;
      for (const int64_t end = count - begin < each ? count : begin + each; begin < end; begin += grain)
        body(begin, end - begin < grain ? end : begin + grain, worker, data);
      done_.fetch_add(1, std::memory_order_acq_rel);
      ran = true;
      state = state_.load(std::memory_order_acquire);
    }
  }

  bool has_work() const {
    return taken(state_.load(std::memory_order_seq_cst)) < pieces_.load(std::memory_order_acquire);
  }

  void loop(int32_t worker) {
    inside_region = true;  // a region inside a body runs in place
    int spins = 0;
    while (!stopping_.load(std::memory_order_relaxed)) {
      if (work(worker)) {
        spins = 0;
      } else if (++spins < SPINS) {
        pause();
      } else {
        std::unique_lock<std::mutex> hold(lock_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(hold, [this] { return has_work() || stopping_.load(); });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        spins = 0;
      }
    }
  }

  const int32_t threads_;
  bool started_ = false;
  std::thread* workers_ = nullptr;
  std::atomic<bool> held_{false}, stopping_{false};
  alignas(64) std::atomic<uint64_t> state_{CLOSED};
  std::atomic<uint32_t> pieces_{0};
  std::atomic<MgeBody> body_{nullptr};
  std::atomic<void*> data_{nullptr};
  std::atomic<int64_t> count_{0}, grain_{1}, each_{1};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::mutex lock_;
  std::condition_variable wake_;
  std::atomic<int32_t> sleepers_{0};
};

// Never destroyed at exit: kernels may run while static objects die.
std::atomic<Pool*> the_pool{nullptr};
std::atomic<int32_t> wanted{0};

void forget_pool() { the_pool.store(nullptr); }  // the child's copy has no threads; its memory is left

int32_t wanted_threads() {
  int32_t count = wanted.load();
  if (count < 1) count = static_cast<int32_t>(std::thread::hardware_concurrency());
  return count < 1 ? 1 : count;
}

Pool& pool() {
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found) return *found;
  static int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  (void)registered;
  Pool* made = new Pool(wanted_threads());
  if (the_pool.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

}  // namespace

void set_thread_count(int32_t count) {
  wanted.store(count);
  Pool* old = the_pool.load();
  if (!old || old->threads() == wanted_threads()) return;
  the_pool.store(nullptr);
  old->stop();
  delete old;
}

int32_t thread_count() { return pool().threads(); }

void parallel_for(int64_t count, int64_t grain, MgeBody body, void* data) {
  if (grain < 1) grain = 1;
  if (count <= grain) {
    if (count > 0) body(0, count, 0, data);
    return;
  }
  Pool& shared = pool();
  if (inside_region || shared.threads() == 1 || !shared.try_hold()) {
    run_serially(count, grain, body, data);
    return;
  }
  inside_region = true;
  shared.run(count, grain, body, data);
  inside_region = false;
  shared.drop();
}

}  // namespace mge
