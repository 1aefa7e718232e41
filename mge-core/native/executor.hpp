// The plan executor: runs a whole plan's steps over one arena in each memory.
//
// In: values with their places, steps with their kernels, streams and events; per run the addresses of
// arenas, inputs and results. Out: written results, or the step that failed and why. No Python here:
// steps without a native kernel are calls through HostCalls.
#ifndef MGE_NATIVE_EXECUTOR_HPP
#define MGE_NATIVE_EXECUTOR_HPP

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend.hpp"

namespace mge {

enum class Place { ARENA, FIXED, INPUT, RESULT };

// One value of a plan.
struct PlanValue {
  MgeDataType dtype;
  std::vector<int64_t> shape;
  Place place;
  uint64_t at;  // offset in the arena; address; number of the input or result
  uint32_t memory = 0;  // number of the memory that it is in
};

// A copy between the host's memory and a device's own, or within that: from a step's one input to its one output.
struct PlanCopy {
  const Backend* backend;
  int32_t device;
  MgeCopyKind kind;
  size_t nbytes;
};

constexpr uint64_t APART = UINT64_MAX;          // in `scratch_at`: in the workspace, which steps of a stream share
constexpr uint32_t NO_VALUE = 0xffffffff;  // in `outputs`: nobody needs it, and the kernel takes NULL

// One step of a plan.
struct PlanStep {
  std::shared_ptr<Kernel> kernel;  // nullptr: a copy or a host call
  std::vector<uint32_t> inputs, outputs;
  int32_t stream = 0;              // of the kernel's device
  std::vector<uint32_t> waits;     // earlier steps that must have finished; needed across streams only
  bool records = false;            // a later step waits for this one
  uint32_t memory = 0;             // where its scratch is
  std::optional<PlanCopy> copy;
  uint64_t scratch_at = APART;     // offset in the arena of `memory`

  // nullptr for a host call.
  const Backend* backend() const { return kernel ? &kernel->backend() : copy ? copy->backend : nullptr; }
  int32_t device() const { return kernel ? kernel->device() : copy->device; }
};

// Where a run finds the bytes of one memory.
struct Region {
  void* arena;
  void* workspace;  // aligned to ALIGNMENT
};

// How steps without a native kernel run, and how a run is interrupted. Called on the thread of run().
class HostCalls {
 public:
  virtual ~HostCalls() = default;
  // Runs steps first .. last - 1. On failure sets *failed to the step that failed, and returns false.
  virtual bool call(uint32_t first, uint32_t last, int64_t* times, uint32_t* failed) = 0;
  // Asked every 20 ms or so, between steps: whether to stop.
  virtual bool interrupted() = 0;
};

struct RunFailure {
  enum Kind { NONE, KERNEL, HOST_CALL, INTERRUPT };
  Kind kind = NONE;
  uint32_t step = 0;
  MgeError error;
};

// Runs of one plan do not overlap.
class Executor {
 public:
  // `memories`: what kernels see as the device of a value, by the number of its memory.
  // On a device that cannot make a stream or an event, is_good() is false and `error` says why.
  Executor(std::vector<PlanValue> values, std::vector<PlanStep> steps, MgeError* error,
           std::vector<MgeDevice> memories = {{1, 0}});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  bool is_good() const { return is_good_; }
  // Scratch beside the arena that a run needs in a memory: for each stream as much as its most demanding step.
  size_t workspace_bytes(uint32_t memory = 0) const { return workspace_bytes_[memory]; }

  // `regions`: one for each memory. Returns when all work is done, on success and on failure. `times`: (optional) start and end of each
  // step, in ns of the steady clock; then each step is waited for by itself.
  RunFailure run(const Region* regions, void* const* inputs, void* const* results, HostCalls* host,
                 int64_t* times);

 private:
  struct Value {
    MgeTensor tensor;
    std::vector<int64_t> shape;
  };
  struct Moving {  // a value whose address changes from run to run
    uint32_t value;
    uint32_t from;
  };
  struct Queue {  // one stream of one device; `handle` is NULL where the backend has no streams
    const Backend* backend;
    int32_t device, stream;
    void* handle;
    uint32_t memory;
    size_t workspace_at, workspace_bytes;
    bool is_busy;
  };
  struct Wait {
    const MgeBackend* table;  // of the step that is waited for
    void* event;
    bool on_host;             // the waiting step is of another backend, or has no stream
  };
  struct Step {
    const Kernel* kernel;  // nullptr: a copy where there is a queue, else a host call
    const PlanCopy* copy;
    uint64_t scratch_at;
    const MgeTensor* const* inputs;
    MgeTensor* const* outputs;
    uint32_t queue;
    uint32_t run_end;  // of a row of host calls that starts here
    uint32_t first_wait, last_wait;
    void* event;       // to record after the step, or NULL
  };

  uint32_t queue_of(const PlanStep& step, MgeError* error);
  int begin(const Step& step, MgeError* error);
  int sync_all(MgeError* error);
  int start(const Step& step, const Region* regions, MgeError* error);

  std::vector<Value> values_;
  std::vector<PlanStep> source_;  // keeps kernels alive
  std::vector<MgeTensor*> tensors_;
  std::vector<Step> steps_;
  std::vector<Wait> waits_;
  std::vector<Queue> queues_;
  std::vector<Moving> in_arena_, in_inputs_, in_results_;
  std::vector<uint64_t> offsets_;
  std::vector<uint32_t> memories_;  // of `offsets_`
  std::vector<size_t> workspace_bytes_;
  bool is_good_ = true, is_async_ = false;
  std::vector<void*> arenas_;
};

}  // namespace mge

#endif
