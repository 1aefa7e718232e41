// Plans that run outside the interpreter, with steps that come back to it.
//
// In: values, steps, kernels. Out: `Plan`.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_PLAN_HPP
#define MGE_NATIVE_BIND_PLAN_HPP

#include "kernels.hpp"

namespace mge {
namespace {

class Plan : private HostCalls {
 public:
  // values: (code, bits, shape, place, at, memory) each; steps: (kernel, or (backend, device, kind, bytes) of a copy,
  // or None, inputs, outputs, stream, waits, records, memory, offset of its scratch in the arena or None) each; calls: for each step in Python (callable,
  // arguments), else None. memories: (DLPack's type, index) each, and arenas: (bytes, bytes of scratch) each.
  Plan(const py::sequence& values, const py::sequence& steps, const py::sequence& calls, std::vector<size_t> input_bytes,
       std::vector<size_t> result_bytes, const std::vector<std::pair<int32_t, int32_t>>& memories,
       std::vector<std::pair<size_t, size_t>> arenas)
      : input_bytes_(std::move(input_bytes)), result_bytes_(std::move(result_bytes)), arenas_(std::move(arenas)) {
    std::vector<PlanValue> plan_values;
    for (py::handle item : values) {
      auto value = py::cast<py::tuple>(item);
      MgeDataType dtype{py::cast<uint8_t>(value[0]), py::cast<uint8_t>(value[1]), 1};
      plan_values.push_back({dtype, py::cast<std::vector<int64_t>>(value[2]),
                             static_cast<Place>(py::cast<int>(value[3])), py::cast<uint64_t>(value[4]),
                             py::cast<uint32_t>(value[5])});
    }
    std::vector<PlanStep> plan_steps;
    for (py::handle item : steps) {
      auto step = py::cast<py::tuple>(item);
      PlanStep made;
      if (py::isinstance<py::tuple>(step[0])) {
        auto copy = py::cast<py::tuple>(step[0]);
        made.copy = PlanCopy{py::cast<const Backend*>(copy[0]), py::cast<int32_t>(copy[1]),
                             static_cast<MgeCopyKind>(py::cast<int>(copy[2])), py::cast<size_t>(copy[3])};
      } else if (!step[0].is_none()) {
        made.kernel = py::cast<std::shared_ptr<CallableKernel>>(step[0])->kernel();
      }
      made.inputs = py::cast<std::vector<uint32_t>>(step[1]);
      made.outputs = py::cast<std::vector<uint32_t>>(step[2]);
      made.stream = py::cast<int32_t>(step[3]);
      made.waits = py::cast<std::vector<uint32_t>>(step[4]);
      made.records = py::cast<bool>(step[5]);
      made.memory = py::cast<uint32_t>(step[6]);
      if (!step[7].is_none()) made.scratch_at = py::cast<uint64_t>(step[7]);
      plan_steps.push_back(std::move(made));
    }
    for (py::handle item : calls) {
      if (item.is_none()) {
        calls_.push_back({py::object(), py::tuple()});
        continue;
      }
      auto call = py::cast<py::tuple>(item);
      calls_.push_back({call[0], py::cast<py::tuple>(call[1])});
    }
    step_count_ = plan_steps.size();
    MgeError error = no_error();
    std::vector<MgeDevice> devices;
    for (auto [type, index] : memories) devices.push_back({type, index});
    executor_ = std::make_unique<Executor>(std::move(plan_values), std::move(plan_steps), &error, devices);
    if (!executor_->is_good()) failure_ = result_of(error.code ? error.code : MGE_FAILED, error);
    for (uint32_t m = 0; m < arenas_.size() && executor_->is_good(); ++m)
      if (executor_->workspace_bytes(m) > arenas_[m].second) throw py::value_error("the scratch is too small");
  }

  // None, or (status, text): why the plan cannot run.
  py::object failure() const { return failure_; }
  // Where the last run failed; the number of steps after one that did not; 0 after `reset`.
  uint32_t step() const { return step_; }
  void reset() { step_ = 0; }

  // None, or (status, text) of the step `step`; what a host call raises is raised.
  py::object run(const std::vector<uintptr_t>& arenas, const py::list& inputs, const py::list& results,
                 const py::object& times) {
    inputs_.resize(input_bytes_.size());
    results_.resize(result_bytes_.size());
    addresses(inputs, input_bytes_, inputs_.data());
    addresses(results, result_bytes_, results_.data());
    regions_.clear();
    for (size_t m = 0; m < arenas_.size(); ++m) {
      auto* base = reinterpret_cast<char*>(arenas.at(m));
      regions_.push_back({base, base + arenas_[m].first});
    }
    int64_t* clock = nullptr;
    if (!times.is_none()) {
      auto array = py::cast<py::array_t<int64_t>>(times);
      if (static_cast<size_t>(array.size()) < 2 * step_count_) throw py::value_error("times is too small");
      clock = array.mutable_data();
    }
    return start(inputs_.data(), results_.data(), clock);
  }

  // The same over addresses, in the arenas of the last run.
  py::object start(void* const* inputs, void* const* results, int64_t* clock = nullptr) {
    thread_ = PyEval_SaveThread();
    RunFailure failure = executor_->run(regions_.data(), inputs, results, this, clock);
    PyEval_RestoreThread(thread_);
    step_ = failure.kind == RunFailure::NONE ? static_cast<uint32_t>(step_count_) : failure.step;
    if (failure.kind == RunFailure::NONE) return py::none();
    if (failure.kind != RunFailure::KERNEL) throw py::error_already_set();
    return result_of(failure.error.code, failure.error);
  }

  // Where an array's bytes are; it must have `nbytes` of them, dense.
  static void* address(py::handle item, size_t nbytes) {
    if (PyLong_Check(item.ptr()))  // the address of a DeviceArray
      return reinterpret_cast<void*>(py::cast<uintptr_t>(item));
    if (!py::isinstance<py::array>(item)) throw py::type_error("not an array");
    auto array = py::reinterpret_borrow<py::array>(item);
    if (static_cast<size_t>(array.nbytes()) < nbytes || !(array.flags() & py::array::c_style))
      throw py::value_error("an array is smaller than the plan's value, or not dense");
    return const_cast<void*>(array.data());
  }

  const std::vector<size_t>& input_bytes() const { return input_bytes_; }
  const std::vector<size_t>& result_bytes() const { return result_bytes_; }

 private:
  static void addresses(const py::list& arrays, const std::vector<size_t>& nbytes, void** to) {
    if (arrays.size() != nbytes.size()) throw py::value_error("another number of arrays than the plan has");
    for (size_t i = 0; i < nbytes.size(); ++i)
      to[i] = address(PyList_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i)), nbytes[i]);
  }

  bool call(uint32_t first, uint32_t last, int64_t* times, uint32_t* failed) override {
    PyEval_RestoreThread(thread_);
    bool good = true;
    for (uint32_t i = first; i < last && good; ++i) {
      if (times) times[2 * i] = clock_ns();
      PyObject* result = PyObject_Call(calls_[i].function.ptr(), calls_[i].arguments.ptr(), nullptr);
      if (times) times[2 * i + 1] = clock_ns();
      good = result != nullptr;
      Py_XDECREF(result);
      *failed = i;
    }
    if (good && PyErr_CheckSignals() != 0) good = false;
    thread_ = PyEval_SaveThread();
    return good;
  }

  bool interrupted() override {
    PyEval_RestoreThread(thread_);
    bool stop = PyErr_CheckSignals() != 0;
    thread_ = PyEval_SaveThread();
    return stop;
  }

  static int64_t clock_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  struct Call {
    py::object function;
    py::tuple arguments;
  };

  std::vector<size_t> input_bytes_, result_bytes_;
  std::vector<std::pair<size_t, size_t>> arenas_;
  std::vector<Region> regions_;
  std::vector<void*> inputs_, results_;
  std::vector<Call> calls_;
  std::unique_ptr<Executor> executor_;
  py::object failure_ = py::none();
  size_t step_count_ = 0;
  uint32_t step_ = 0;
  PyThreadState* thread_ = nullptr;
};

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_PLAN_HPP
