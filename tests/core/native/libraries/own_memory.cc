// A device for tests whose memory is its own: the kernels of the toy example over pages that nobody can touch but
// while a kernel or a copy runs. Its streams are late. With -DOWN_STREAMS=0 it has none.
#include <sys/mman.h>

#include <map>

#include "fake_streams.hpp"
#include "mge/kernel.hpp"

#undef MGE_BACKEND
#define MGE_BACKEND(...) static void add_kernels(mge::Kernels& kernels)
#include "../../../../examples/mge-toy-native/toy.cc"

#ifndef OWN_STREAMS
#define OWN_STREAMS 1
#endif
#ifndef OWN_DELAY_US
#define OWN_DELAY_US 50
#endif
#ifndef OWN_NAME
#define OWN_NAME "own_memory"
#endif

namespace {

constexpr size_t CAPACITY = size_t{64} << 20;

std::atomic<int> delay_us{OWN_DELAY_US}, fail_in{-1}, live_kernels{0};
std::atomic<int64_t> copied_bytes[3];

// The device's memory: a first-fit allocator over one mapping.
class Memory {
 public:
  Memory() : base_(static_cast<char*>(mmap(nullptr, CAPACITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    gaps_[0] = CAPACITY;
  }
  void* take(size_t nbytes) {
    std::lock_guard<std::mutex> hold(lock_);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      auto [at, size] = *gap;
      if (size < nbytes) continue;
      gaps_.erase(gap);
      if (size > nbytes) gaps_[at + nbytes] = size - nbytes;
      in_use_ += nbytes;
      return base_ + at;
    }
    return nullptr;
  }
  void give(void* block, size_t nbytes) {
    std::lock_guard<std::mutex> hold(lock_);
    auto gap = gaps_.emplace(static_cast<size_t>(static_cast<char*>(block) - base_), nbytes).first;
    auto next = std::next(gap);
    if (next != gaps_.end() && gap->first + gap->second == next->first) gap->second += next->second, gaps_.erase(next);
    if (gap != gaps_.begin() && std::prev(gap)->first + std::prev(gap)->second == gap->first)
      std::prev(gap)->second += gap->second, gaps_.erase(gap);
    in_use_ -= nbytes;
  }
  void open() {
    std::lock_guard<std::mutex> hold(lock_);
    if (users_++ == 0) mprotect(base_, CAPACITY, PROT_READ | PROT_WRITE);
  }
  void close() {
    std::lock_guard<std::mutex> hold(lock_);
    if (--users_ == 0) mprotect(base_, CAPACITY, PROT_NONE);
  }
  int64_t in_use() {
    std::lock_guard<std::mutex> hold(lock_);
    return static_cast<int64_t>(in_use_);
  }

 private:
  std::mutex lock_;
  char* const base_;
  std::map<size_t, size_t> gaps_;  // offset -> bytes
  size_t in_use_ = 0;
  int users_ = 0;
};

Memory& memory() {
  static auto* made = new Memory;
  return *made;
}

struct Open {
  Open() { memory().open(); }
  ~Open() { memory().close(); }
};

size_t lines(size_t nbytes) { return (nbytes + 63) / 64 * 64; }

// Each stream in its own way, and no two steps alike: streams must not keep pace by chance.
int wait_us(const Stream* stream) {
  static std::atomic<unsigned> count{0};
  return delay_us * (stream->number() % 2 ? 1 : 3) * static_cast<int>(1 + (count++ * 2654435761u >> 28) % 4);
}

struct Own : mge::HostBackend<Own> {
  using Base = mge::HostBackend<Own>;

  static const mge::Kernels& kernels() {
    static const mge::Kernels* all = [] {
      auto* made = new mge::Kernels;
      add_kernels(*made);
      return made;
    }();
    return *all;
  }
  static int device_info(int32_t, MgeDeviceInfo* info, MgeError*) {
    info->stream_count = 3;
    info->memory_bytes = CAPACITY;
    snprintf(info->name, sizeof info->name, "pages of its own");
    return MGE_OK;
  }
  static int mem_alloc(int32_t, size_t nbytes, size_t, void*, void** out, MgeError* error) {
    *out = nbytes <= CAPACITY ? memory().take(lines(nbytes)) : nullptr;
    return *out ? MGE_OK : mge_fail(error, MGE_OUT_OF_MEMORY, "no such gap in 64 MiB");
  }
  static void mem_free(int32_t, void* block, size_t nbytes, void*) { memory().give(block, lines(nbytes)); }
  static int mem_copy(int32_t, void* to, const void* from, size_t nbytes, MgeCopyKind kind, void* stream, MgeError*) {
    copied_bytes[kind] += static_cast<int64_t>(nbytes);
    auto copy = [=] {
      Open open;
      memcpy(to, from, nbytes);
    };
    if (!stream) return copy(), MGE_OK;
    auto* queue = static_cast<Stream*>(stream);
    queue->push([=, wait = wait_us(queue)] {
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
      copy();
    });
    return MGE_OK;
  }
  static int prepare(int32_t device, const MgeOp* op, void** kernel, MgeKernelInfo* info, MgeError* error) {
    int status = Base::prepare(device, op, kernel, info, error);
    if (status == MGE_OK) ++live_kernels;
    return status;
  }
  static void release(void* kernel) {
    --live_kernels;
    Base::release(kernel);
  }
  // What a kernel is given, kept until its turn.
  struct Job {
    std::vector<MgeTensor> tensors;
    std::vector<const MgeTensor*> inputs;
    std::vector<MgeTensor*> outputs;
  };
  static int run(void* kernel, void* stream, const MgeTensor* const* inputs, MgeTensor* const* outputs,
                 void* workspace, MgeError* error) {
    if (fail_in >= 0 && fail_in-- == 0) return mge_fail(error, MGE_FAILED, "planned");
    const mge::Use& use = static_cast<Prepared*>(kernel)->use;
    for (size_t i = 0; i < use.inputs.size(); ++i)
      if (inputs[i]->device.type != 12) return mge_fail(error, MGE_FAILED, "a tensor is not of this device");
    if (!stream) {
      Open open;
      return Base::run(kernel, nullptr, inputs, outputs, workspace, error);
    }
    auto job = std::make_shared<Job>();
    for (size_t i = 0; i < use.inputs.size(); ++i) job->tensors.push_back(*inputs[i]);
    for (size_t i = 0; i < use.outputs.size(); ++i) job->tensors.push_back(*outputs[i]);
    for (size_t i = 0; i < job->tensors.size(); ++i)
      if (i < use.inputs.size())
        job->inputs.push_back(&job->tensors[i]);
      else
        job->outputs.push_back(&job->tensors[i]);
    auto* queue = static_cast<Stream*>(stream);
    queue->push([=, wait = wait_us(queue)] {
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
      Open open;
      MgeError late{sizeof(MgeError), 0, ""};
      if (Base::run(kernel, nullptr, job->inputs.data(), job->outputs.data(), workspace, &late)) queue->failure = late.message;
    });
    return MGE_OK;
  }
};

int stream_create(int32_t, void** stream, MgeError*) { return *stream = new Stream, MGE_OK; }
void stream_destroy(void* stream) { delete static_cast<Stream*>(stream); }
int stream_sync(void* stream, MgeError* error) {
  auto* mine = static_cast<Stream*>(stream);
  mine->sync();
  if (mine->failure.empty()) return MGE_OK;
  std::string failure;
  failure.swap(mine->failure);
  return mge_fail(error, MGE_FAILED, failure.c_str());
}
int event_create(int32_t, void** event, MgeError*) { return *event = new Event, MGE_OK; }
void event_destroy(void* event) { delete static_cast<Event*>(event); }
int event_record(void* event, void* stream, MgeError*) {
  static_cast<Event*>(event)->record(*static_cast<Stream*>(stream));
  return MGE_OK;
}
int event_wait(void* event, void* stream, MgeError*) {
  static_cast<Event*>(event)->hold_back(*static_cast<Stream*>(stream));
  return MGE_OK;
}
int event_sync(void* event, MgeError*) {
  auto* mine = static_cast<Event*>(event);
  mine->wait_for(mine->number());
  return MGE_OK;
}

const MgeBackend table = [] {
  MgeBackend made = Own::table(OWN_NAME, "Own Ltd.", "0");
  made.device_info = Own::device_info, made.mem_alloc = Own::mem_alloc, made.mem_free = Own::mem_free;
  made.mem_copy = Own::mem_copy, made.prepare = Own::prepare, made.run = Own::run, made.release = Own::release;
  if (OWN_STREAMS) {
    made.stream_create = stream_create, made.stream_destroy = stream_destroy, made.stream_sync = stream_sync;
    made.event_create = event_create, made.event_destroy = event_destroy, made.event_record = event_record;
    made.event_wait = event_wait, made.event_sync = event_sync;
  }
  return made;
}();

}  // namespace

MGE_DEFINE_BACKEND(table)

// For the tests, through ctypes.
extern "C" MGE_EXPORT int64_t own_bytes() { return memory().in_use(); }
extern "C" MGE_EXPORT int own_kernels() { return live_kernels; }
extern "C" MGE_EXPORT int64_t own_copied(int kind) { return copied_bytes[kind].exchange(0); }
extern "C" MGE_EXPORT void own_delay(int us) { delay_us = us; }
extern "C" MGE_EXPORT void own_fail(int in_runs) { fail_in = in_runs; }
