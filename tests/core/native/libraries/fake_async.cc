// A fake asynchronous device for tests: each stream is a thread, and each is late in its own way, so that
// work that depends on another stream gives wrong numbers unless events are honoured.
#include <atomic>
#include <chrono>
#include <cstring>

#include "fake_streams.hpp"
#include "mge/kernel.hpp"

#ifndef FAKE_DELAY_US
#define FAKE_DELAY_US 2000
#endif

namespace {

std::atomic<int> running{0}, most_running{0}, runs{0}, live_events{0}, delay_us{FAKE_DELAY_US};
std::atomic<int> fail_at{-1};

struct Work {
  mge::Use use;
  float (*function)(float, float);
};

int32_t device_count() { return 1; }
int device_info(int32_t, MgeDeviceInfo* info, MgeError*) {
  info->flags = MGE_DEVICE_HOST_MEMORY;
  info->stream_count = 3;
  info->memory_bytes = 1 << 20;
  info->capabilities = "{\"streams\": 3}";
  snprintf(info->name, sizeof info->name, "fake");
  return MGE_OK;
}
using Memory = mge::HostBackend<void>;
int supports(int32_t, const MgeOp* op, char* reason, size_t capacity) {
  bool good = (!strcmp(op->name, "add") || !strcmp(op->name, "mul")) && op->inputs[0].dtype.bits == 32;
  if (!good) snprintf(reason, capacity, "only add and mul");
  return good;
}
int prepare(int32_t, const MgeOp* op, void** kernel, MgeKernelInfo*, MgeError*) {
  float (*add)(float, float) = [](float x, float y) { return x + y; };
  float (*mul)(float, float) = [](float x, float y) { return x * y; };
  *kernel = new Work{mge::Use(*op), !strcmp(op->name, "add") ? add : mul};
  return MGE_OK;
}
void release(void* kernel) { delete static_cast<Work*>(kernel); }
int run(void* kernel, void* stream, const MgeTensor* const* in, MgeTensor* const* out, void*, MgeError* error) {
  auto* work = static_cast<Work*>(kernel);
  auto* queue = static_cast<Stream*>(stream);
  if (runs++ == fail_at) return mge_fail(error, MGE_FAILED, "planned");
  const float *x = static_cast<float*>(in[0]->data), *y = static_cast<float*>(in[1]->data);
  float* z = static_cast<float*>(out[0]->data);
  int64_t count = work->use.outputs[0].size(), x_step = work->use.inputs[0].size() > 1, y_step = work->use.inputs[1].size() > 1;
  int wait_us = delay_us * (queue->number() % 2 ? 1 : 3);  // each stream in its own way
  queue->push([=] {
    int now = ++running;
    for (int most = most_running; most < now && !most_running.compare_exchange_weak(most, now);) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
    for (int64_t i = 0; i < count; ++i) z[i] = work->function(x[i * x_step], y[i * y_step]);
    --running;
  });
  return MGE_OK;
}
int stream_create(int32_t, void** stream, MgeError*) { return *stream = new Stream, MGE_OK; }
void stream_destroy(void* stream) { delete static_cast<Stream*>(stream); }
int stream_sync(void* stream, MgeError*) { return static_cast<Stream*>(stream)->sync(), MGE_OK; }
int event_create(int32_t, void** event, MgeError*) { return ++live_events, *event = new Event, MGE_OK; }
void event_destroy(void* event) { --live_events, delete static_cast<Event*>(event); }
int event_record(void* event, void* stream, MgeError*) {
  return static_cast<Event*>(event)->record(*static_cast<Stream*>(stream)), MGE_OK;
}
int event_wait(void* event, void* stream, MgeError*) {
  return static_cast<Event*>(event)->hold_back(*static_cast<Stream*>(stream)), MGE_OK;
}
int event_sync(void* event, MgeError*) {
  auto* mine = static_cast<Event*>(event);
  return mine->wait_for(mine->number()), MGE_OK;
}

const MgeBackend table = {
    MGE_BACKEND_VERSION, "fake_async", "Fake Ltd.", "0", -1, 0, device_count, device_info,
    Memory::mem_alloc, Memory::mem_free, Memory::mem_copy, supports, prepare, run, release,
    stream_create, stream_destroy, stream_sync, event_create, event_destroy, event_record, event_wait, event_sync,
    nullptr, nullptr, nullptr};

}  // namespace

MGE_DEFINE_BACKEND(table)

// For the tests, through ctypes.
extern "C" MGE_EXPORT int fake_most_running() { return most_running.exchange(0); }
extern "C" MGE_EXPORT int fake_live() { return live_events + live_streams; }
extern "C" MGE_EXPORT void fake_delay(int us) { delay_us = us; }
extern "C" MGE_EXPORT void fake_fail(int in_runs) { fail_at = in_runs < 0 ? -1 : runs + in_runs; }
