// Streams for fake devices: each is a thread that does its work in order, beside the others. Events are counters.
#ifndef FAKE_STREAMS_HPP
#define FAKE_STREAMS_HPP

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace {

std::atomic<int> created{0}, live_streams{0};

class Stream {
 public:
  Stream() : number_(created++), thread_([this] { loop(); }) { ++live_streams; }
  ~Stream() {
    push({});
    thread_.join();
    --live_streams;
  }
  void push(std::function<void()> work) {
    std::lock_guard<std::mutex> hold(lock_);
    queue_.push_back(std::move(work));
    wake_.notify_all();
  }
  void sync() {
    std::unique_lock<std::mutex> hold(lock_);
    wake_.wait(hold, [this] { return queue_.empty() && !busy_; });
  }
  int number() const { return number_; }
  std::string failure;

 private:
  void loop() {
    while (true) {
      std::unique_lock<std::mutex> hold(lock_);
      busy_ = false;
      wake_.notify_all();
      wake_.wait(hold, [this] { return !queue_.empty(); });
      auto work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      hold.unlock();
      if (!work) return;
      work();
    }
  }

  const int number_;
  std::mutex lock_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  std::thread thread_;
};

class Event {
 public:
  // Marks what is queued so far.
  void record(Stream& stream) {
    std::lock_guard<std::mutex> hold(lock);
    uint64_t number = ++recorded;
    stream.push([this, number] {
      std::lock_guard<std::mutex> hold(lock);
      reached = number;
      wake.notify_all();
    });
  }
  // Later work of a stream waits for the mark.
  void hold_back(Stream& stream) {
    std::lock_guard<std::mutex> hold(lock);
    uint64_t number = recorded;
    stream.push([this, number] { wait_for(number); });
  }
  uint64_t number() {
    std::lock_guard<std::mutex> hold(lock);
    return recorded;
  }

  void wait_for(uint64_t number) {
    std::unique_lock<std::mutex> hold(lock);
    wake.wait(hold, [&] { return reached >= number; });
  }

 private:
  std::mutex lock;
  std::condition_variable wake;
  uint64_t recorded = 0, reached = 0;
};

}  // namespace

#endif
