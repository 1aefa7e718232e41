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

Executor::Executor(std::vector<PlanValue> values, std::vector<PlanStep> steps, MgeError* error,
                   std::vector<MgeDevice> memories)
    : source_(std::move(steps)), workspace_bytes_(memories.size()), arenas_(memories.size()) {
  values_.resize(values.size());
  for (uint32_t v = 0; v < values.size(); ++v) {
    Value& value = values_[v];
    value.shape = std::move(values[v].shape);
    value.tensor = MgeTensor{};
    value.tensor.device = memories[values[v].memory];
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
      memories_.push_back(values[v].memory);
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
    for (uint32_t v : from.outputs) tensors_.push_back(v == NO_VALUE ? nullptr : &values_[v].tensor);
    step.inputs = const_cast<const MgeTensor* const*>(first);
    step.outputs = first + from.inputs.size();
    step.copy = from.copy ? &*from.copy : nullptr;
    step.scratch_at = from.scratch_at;
    step.queue = from.backend() ? queue_of(from, error) : NO_QUEUE;
    if (!is_good_) return;
    step.run_end = i + 1;
    step.event = nullptr;
    step.first_wait = static_cast<uint32_t>(waits_.size());
    for (uint32_t w : from.waits) {
      if (!steps_[w].event) continue;  // synchronous, so it has finished
      bool same = from.backend() == source_[w].backend();
      waits_.push_back({&source_[w].backend()->table(), steps_[w].event, !same});
    }
    step.last_wait = static_cast<uint32_t>(waits_.size());
    if (from.backend() && from.records && from.backend()->has_streams()) {
      int status = from.backend()->table().event_create(from.device(), &step.event, error);
      if (status != MGE_OK) step.event = nullptr, is_good_ = false;
    }
    if (!is_good_) return;
  }
  for (uint32_t i = static_cast<uint32_t>(steps_.size()); i-- > 1;)  // rows of host calls
    if (steps_[i].queue == NO_QUEUE && steps_[i - 1].queue == NO_QUEUE && steps_[i].first_wait == steps_[i].last_wait)
      steps_[i - 1].run_end = steps_[i].run_end;
  for (Queue& queue : queues_) {
    size_t& top = workspace_bytes_[queue.memory];
    queue.workspace_at = top;
    top += (queue.workspace_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }
}

Executor::~Executor() {
  for (uint32_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].event) source_[i].backend()->table().event_destroy(steps_[i].event);
  for (const Queue& queue : queues_)
    if (queue.handle) queue.backend->table().stream_destroy(queue.handle);
}

uint32_t Executor::queue_of(const PlanStep& step, MgeError* error) {
  const size_t scratch = step.kernel && step.scratch_at == APART ? step.kernel->workspace_bytes() : 0;
  for (uint32_t q = 0; q < queues_.size(); ++q) {
    Queue& queue = queues_[q];
    if (queue.backend == step.backend() && queue.device == step.device() && queue.stream == step.stream) {
      queue.workspace_bytes = std::max(queue.workspace_bytes, scratch);
      if (step.kernel) queue.memory = step.memory;
      return q;
    }
  }
  Queue queue{step.backend(), step.device(), step.stream, nullptr, step.memory, 0, scratch, false};
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

// Runs a kernel or a copy, or puts it on its stream.
int Executor::start(const Step& step, const Region* regions, MgeError* error) {
  const Queue& queue = queues_[step.queue];
  if (step.kernel) {
    const Region& region = regions[queue.memory];
    void* scratch = step.scratch_at == APART ? static_cast<char*>(region.workspace) + queue.workspace_at
                                             : static_cast<char*>(region.arena) + step.scratch_at;
    return step.kernel->run(queue.handle, step.inputs, step.outputs, scratch, error);
  }
  const PlanCopy& copy = *step.copy;
  if (copy.nbytes == 0) return MGE_OK;
  return queue.backend->table().mem_copy(copy.device, step.outputs[0]->data, step.inputs[0]->data, copy.nbytes,
                                         copy.kind, queue.handle, error);
}

RunFailure Executor::run(const Region* regions, void* const* inputs, void* const* results, HostCalls* host,
                         int64_t* times) {
  bool same = true;
  for (size_t m = 0; m < arenas_.size(); ++m) {
    same = same && arenas_[m] == regions[m].arena;
    arenas_[m] = regions[m].arena;
  }
  if (!same)
    for (const Moving& m : in_arena_)
      values_[m.value].tensor.data = static_cast<char*>(arenas_[memories_[m.from]]) + offsets_[m.from];
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
    if (step.queue == NO_QUEUE) {
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
    int status = start(step, regions, &failure.error);
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
