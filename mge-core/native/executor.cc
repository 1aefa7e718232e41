#include "executor.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>

namespace mge {
namespace {

constexpr int64_t POLL_NS = 20'000'000;
constexpr uint32_t NO_QUEUE = 0xffffffff;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A few ns, and a few ms wrong: good enough to ask for interrupts.
int64_t coarse_ns() {
#if defined(CLOCK_MONOTONIC_COARSE)
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
#else
  return now_ns();
#endif
}

}  // namespace

Executor::Executor(std::vector<PlanValue> values, std::vector<PlanStep> steps, MgeError* error)
    : source_(std::move(steps)) {
  values_.resize(values.size());
  for (uint32_t v = 0; v < values.size(); ++v) {
    Value& value = values_[v];
    value.shape = std::move(values[v].shape);
    value.tensor = MgeTensor{};
    value.tensor.device = {1, 0};
    value.tensor.ndim = static_cast<int32_t>(value.shape.size());
    value.tensor.dtype = values[v].dtype;
    value.tensor.shape = value.shape.data();
    bool is_empty = std::find(value.shape.begin(), value.shape.end(), 0) != value.shape.end();
    if (is_empty) continue;  // data stays NULL
    uint32_t at = static_cast<uint32_t>(values[v].at);
    if (values[v].place == Place::FIXED) value.tensor.data = reinterpret_cast<void*>(values[v].at);
    if (values[v].place == Place::INPUT) in_inputs_.push_back({v, at});
    if (values[v].place == Place::RESULT) in_results_.push_back({v, at});
    if (values[v].place == Place::ARENA) {
      in_arena_.push_back({v, static_cast<uint32_t>(offsets_.size())});
      offsets_.push_back(values[v].at);
    }
  }
  size_t uses = 0, waits = 0;
  for (const PlanStep& step : source_) uses += step.inputs.size() + step.outputs.size(), waits += step.waits.size();
  tensors_.reserve(uses);  // steps point into it
  waits_.reserve(waits);
  steps_.resize(source_.size());
  for (uint32_t i = 0; i < source_.size(); ++i) {
    const PlanStep& from = source_[i];
    Step& step = steps_[i];
    step.kernel = from.kernel.get();
    MgeTensor** first = tensors_.data() + tensors_.size();
    for (uint32_t v : from.inputs) tensors_.push_back(&values_[v].tensor);
    for (uint32_t v : from.outputs) tensors_.push_back(&values_[v].tensor);
    step.inputs = const_cast<const MgeTensor* const*>(first);
    step.outputs = first + from.inputs.size();
    step.queue = from.kernel ? queue_of(from, error) : NO_QUEUE;
    if (!is_good_) return;
    step.run_end = i + 1;
    step.event = nullptr;
    step.first_wait = static_cast<uint32_t>(waits_.size());
    for (uint32_t w : from.waits) {
      if (!steps_[w].event) continue;  // synchronous, so it has finished
      bool same = from.kernel && source_[w].kernel && &from.kernel->backend() == &source_[w].kernel->backend();
      waits_.push_back({&source_[w].kernel->backend().table(), steps_[w].event, !same});
    }
    step.last_wait = static_cast<uint32_t>(waits_.size());
    if (from.kernel && from.records && from.kernel->backend().has_streams()) {
      int status = from.kernel->backend().table().event_create(from.kernel->device(), &step.event, error);
      if (status != MGE_OK) step.event = nullptr, is_good_ = false;
    }
    if (!is_good_) return;
  }
  for (uint32_t i = static_cast<uint32_t>(steps_.size()); i-- > 1;)  // rows of host calls
    if (!steps_[i].kernel && !steps_[i - 1].kernel && steps_[i].first_wait == steps_[i].last_wait)
      steps_[i - 1].run_end = steps_[i].run_end;
  for (Queue& queue : queues_) {
    queue.workspace_at = workspace_bytes_;
    workspace_bytes_ += (queue.workspace_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }
}

Executor::~Executor() {
  for (uint32_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].event) source_[i].kernel->backend().table().event_destroy(steps_[i].event);
  for (const Queue& queue : queues_)
    if (queue.handle) queue.backend->table().stream_destroy(queue.handle);
}

uint32_t Executor::queue_of(const PlanStep& step, MgeError* error) {
  const Kernel& kernel = *step.kernel;
  for (uint32_t q = 0; q < queues_.size(); ++q) {
    Queue& queue = queues_[q];
    if (queue.backend == &kernel.backend() && queue.device == kernel.device() && queue.stream == step.stream) {
      queue.workspace_bytes = std::max(queue.workspace_bytes, kernel.workspace_bytes());
      return q;
    }
  }
  Queue queue{&kernel.backend(), kernel.device(), step.stream, nullptr, 0, kernel.workspace_bytes(), false};
  if (queue.backend->has_streams()) {
    is_async_ = true;
    if (queue.backend->table().stream_create(queue.device, &queue.handle, error) != MGE_OK) {
      is_good_ = false;
      return NO_QUEUE;
    }
  }
  queues_.push_back(queue);
  return static_cast<uint32_t>(queues_.size() - 1);
}

// Waits for what a step depends on: on its stream where it can, else here.
int Executor::begin(const Step& step, MgeError* error) {
  for (uint32_t w = step.first_wait; w < step.last_wait; ++w) {
    const Wait& wait = waits_[w];
    int status = wait.on_host ? wait.table->event_sync(wait.event, error)
                              : wait.table->event_wait(wait.event, queues_[step.queue].handle, error);
    if (status != MGE_OK) return status;
  }
  return MGE_OK;
}

int Executor::sync_all(MgeError* error) {
  int status = MGE_OK;
  for (Queue& queue : queues_) {
    if (!queue.is_busy) continue;
    queue.is_busy = false;
    MgeError mine = no_error();
    int one = queue.backend->table().stream_sync(queue.handle, &mine);
    if (one != MGE_OK && status == MGE_OK) status = one, *error = mine;
  }
  return status;
}

RunFailure Executor::run(void* arena, void* workspace, void* const* inputs, void* const* results, HostCalls* host,
                         int64_t* times) {
  if (arena != arena_) {
    arena_ = arena;
    for (const Moving& m : in_arena_) values_[m.value].tensor.data = static_cast<char*>(arena) + offsets_[m.from];
  }
  for (const Moving& m : in_inputs_) values_[m.value].tensor.data = inputs[m.from];
  for (const Moving& m : in_results_) values_[m.value].tensor.data = results[m.from];

  RunFailure failure;
  failure.error = no_error();
  int64_t asked = coarse_ns();
  const uint32_t count = static_cast<uint32_t>(steps_.size());
  for (uint32_t i = 0; i < count;) {
    const Step& step = steps_[i];
    if (step.first_wait != step.last_wait) {
      int status = begin(step, &failure.error);
      if (status != MGE_OK) {
        failure.kind = RunFailure::KERNEL;
        failure.step = i;
        failure.error.code = status;
        break;
      }
    }
    if (!step.kernel) {
      uint32_t failed = i;
      if (!host->call(i, step.run_end, times, &failed)) {
        failure.kind = RunFailure::HOST_CALL;
        failure.step = failed;
        break;
      }
      i = step.run_end;
      continue;
    }
    Queue& queue = queues_[step.queue];
    if (times) times[2 * i] = now_ns();
    void* scratch = static_cast<char*>(workspace) + queue.workspace_at;
    int status = step.kernel->run(queue.handle, step.inputs, step.outputs, scratch, &failure.error);
    if (is_async_ && queue.handle && status == MGE_OK) {
      queue.is_busy = true;
      if (step.event) status = queue.backend->table().event_record(step.event, queue.handle, &failure.error);
      if (times && status == MGE_OK) status = queue.backend->table().stream_sync(queue.handle, &failure.error);
    }
    if (times) times[2 * i + 1] = now_ns();
    if (status != MGE_OK) {
      failure.kind = RunFailure::KERNEL;
      failure.step = i;
      failure.error.code = status;
      break;
    }
    ++i;
    if (host) {
      int64_t now = coarse_ns();
      if (now - asked > POLL_NS) {
        asked = now;
        if (host->interrupted()) {
          failure.kind = RunFailure::INTERRUPT;
          failure.step = i - 1;
          break;
        }
      }
    }
  }
  if (is_async_) {
    MgeError late = no_error();
    int status = sync_all(&late);
    if (status != MGE_OK && failure.kind == RunFailure::NONE) {
      failure.kind = RunFailure::KERNEL;
      failure.step = count ? count - 1 : 0;
      failure.error = late;
      failure.error.code = status;
    }
  }
  failure.error.message[sizeof failure.error.message - 1] = 0;
  return failure;
}

}  // namespace mge
