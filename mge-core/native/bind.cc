// mge._native: the native core for Python. The only file that includes Python.h.
//
// In: descriptions as tuples and NumPy arrays, from mge/native.py. Out: backends, kernels, pools, plans.
// Every call into a vendor's code runs without the GIL, but for the cheap questions of `supports`.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend.hpp"
#include "executor.hpp"
#include "memory_pool.hpp"
#include "thread_pool.hpp"
#include "tuning_cache.hpp"

namespace py = pybind11;

namespace mge {
namespace {

// ---- Descriptions ----

struct TypeHolder {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<MgeTensorType> types;
  std::vector<size_t> nbytes;

  explicit TypeHolder(const py::sequence& from) {  // (code, bits, shape) each
    for (py::handle item : from) {
      auto type = py::cast<py::tuple>(item);
      MgeDataType dtype{py::cast<uint8_t>(type[0]), py::cast<uint8_t>(type[1]), 1};
      shapes.push_back(py::cast<std::vector<int64_t>>(type[2]));
      size_t size = dtype.bits / 8;
      for (int64_t n : shapes.back()) size *= static_cast<size_t>(n);
      nbytes.push_back(size);
      types.push_back({dtype, static_cast<int32_t>(shapes.back().size()), nullptr});
    }
    for (size_t i = 0; i < types.size(); ++i) types[i].shape = shapes[i].data();
  }
  TypeHolder(const TypeHolder&) = delete;
  TypeHolder& operator=(const TypeHolder&) = delete;
};

class GraphHolder;

// An MgeOp with what it points to.
class OpHolder {
 public:
  // attrs: (name, kind, value) each, kind as MgeAttrKind. constants: an array or None for each input, or nothing.
  OpHolder(std::string name, const py::sequence& attrs, const py::sequence& inputs, const py::sequence& outputs,
           uint32_t flags, const py::sequence& constants)
      : inputs(inputs), outputs(outputs), name_(std::move(name)), kept_(constants), known_(constants.size()) {
    for (py::handle item : attrs) {
      auto attr = py::cast<py::tuple>(item);
      stores_.push_back(std::make_unique<Store>());
      add_attr(*stores_.back(), py::cast<std::string>(attr[0]), py::cast<uint32_t>(attr[1]), attr[2]);
    }
    op.struct_size = sizeof op;
    op.op_version = 1;
    op.name = name_.c_str();
    op.attrs = attrs_.data();
    op.inputs = this->inputs.types.data();
    op.outputs = this->outputs.types.data();
    op.attr_count = static_cast<uint32_t>(attrs_.size());
    op.input_count = static_cast<uint32_t>(this->inputs.types.size());
    op.output_count = static_cast<uint32_t>(this->outputs.types.size());
    op.flags = flags;
    for (size_t i = 0; i < known_.size(); ++i) {
      MgeTensor& tensor = known_[i];
      const MgeTensorType& type = this->inputs.types.at(i);
      tensor.device = {1, 0};
      tensor.ndim = type.ndim, tensor.dtype = type.dtype;
      tensor.shape = const_cast<int64_t*>(type.shape);
      py::object value = kept_[i];
      if (!value.is_none()) tensor.data = const_cast<void*>(py::cast<py::array>(value).data());
      constants_.push_back(value.is_none() ? nullptr : &tensor);
    }
    op.constants = constants_.empty() ? nullptr : constants_.data();
  }

  MgeOp op{};
  const TypeHolder inputs, outputs;

 private:
  struct Store {
    std::string name, text;
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::vector<std::string> strings;
    std::vector<const char*> pointers;
    std::vector<MgeDataType> dtypes;
    std::shared_ptr<GraphHolder> graph;
  };

  static MgeDataType dtype_of(py::handle pair) {
    auto codes = py::cast<std::pair<uint8_t, uint8_t>>(pair);
    return {codes.first, codes.second, 1};
  }
  void add_attr(Store& store, std::string name, uint32_t kind, py::handle value);

  const std::string name_;
  const py::sequence kept_;  // keeps the arrays alive
  std::vector<MgeTensor> known_;
  std::vector<const MgeTensor*> constants_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<MgeAttr> attrs_;
};

// An MgeGraph with what it points to.
class GraphHolder {
 public:
  // nodes: (op, inputs, outputs) each, with numbers of values; constants: number of a value -> array.
  GraphHolder(const py::sequence& values, const py::sequence& nodes, std::vector<uint32_t> inputs,
              std::vector<uint32_t> outputs, const py::dict& constants)
      : types(values), inputs_(std::move(inputs)), outputs_(std::move(outputs)), constants_(constants) {
    for (const MgeTensorType& type : types.types) values_.push_back({type, nullptr});
    for (auto item : constants)
      values_.at(py::cast<size_t>(item.first)).constant = py::cast<py::array>(item.second).data();
    for (py::handle item : nodes) {
      auto node = py::cast<py::tuple>(item);
      ops_.push_back(py::cast<std::shared_ptr<OpHolder>>(node[0]));
      edges_.push_back(py::cast<std::vector<uint32_t>>(node[1]));
      edges_.push_back(py::cast<std::vector<uint32_t>>(node[2]));
    }
    for (size_t i = 0; i < ops_.size(); ++i)
      nodes_.push_back({&ops_[i]->op, edges_[2 * i].data(), edges_[2 * i + 1].data()});
    graph.struct_size = sizeof graph;
    graph.value_count = static_cast<uint32_t>(values_.size());
    graph.node_count = static_cast<uint32_t>(nodes_.size());
    graph.input_count = static_cast<uint32_t>(inputs_.size());
    graph.output_count = static_cast<uint32_t>(outputs_.size());
    graph.values = values_.data();
    graph.nodes = nodes_.data();
    graph.inputs = inputs_.data();
    graph.outputs = outputs_.data();
  }
  GraphHolder(const GraphHolder&) = delete;
  GraphHolder& operator=(const GraphHolder&) = delete;

  // The types of the graph's own inputs and outputs, as (code, bits, shape).
  py::tuple types_of(const std::vector<uint32_t>& which) const {
    py::list found;
    for (uint32_t v : which) {
      const MgeTensorType& type = types.types.at(v);
      found.append(py::make_tuple(type.dtype.code, type.dtype.bits, py::cast(types.shapes.at(v))));
    }
    return py::tuple(found);
  }
  py::tuple input_types() const { return types_of(inputs_); }
  py::tuple output_types() const { return types_of(outputs_); }

  MgeGraph graph{};
  const TypeHolder types;

 private:
  std::vector<uint32_t> inputs_, outputs_;
  py::dict constants_;  // keeps the arrays alive
  std::vector<MgeValue> values_;
  std::vector<std::shared_ptr<OpHolder>> ops_;
  std::vector<std::vector<uint32_t>> edges_;
  std::vector<MgeNode> nodes_;
};

void OpHolder::add_attr(Store& store, std::string name, uint32_t kind, py::handle value) {
  store.name = std::move(name);
  MgeAttr attr{};
  attr.name = store.name.c_str();
  attr.kind = kind;
  size_t count = 0;
  switch (kind) {
    case MGE_ATTR_NONE:
      break;
    case MGE_ATTR_INT:
    case MGE_ATTR_BOOL:
      attr.value.i = py::cast<int64_t>(value);
      break;
    case MGE_ATTR_FLOAT:
      attr.value.f = py::cast<double>(value);
      break;
    case MGE_ATTR_STRING:
    case MGE_ATTR_BYTES:
      store.text = py::cast<std::string>(value);
      count = store.text.size();
      if (kind == MGE_ATTR_STRING)
        attr.value.s = store.text.c_str();
      else
        attr.value.bytes = reinterpret_cast<const uint8_t*>(store.text.data());
      break;
    case MGE_ATTR_DTYPE:
      attr.value.dtype = dtype_of(value);
      break;
    case MGE_ATTR_GRAPH:
      store.graph = py::cast<std::shared_ptr<GraphHolder>>(value);
      attr.value.graph = &store.graph->graph;
      break;
    case MGE_ATTR_INTS:
    case MGE_ATTR_BOOLS:
      store.ints = py::cast<std::vector<int64_t>>(value);
      attr.value.ints = store.ints.data();
      count = store.ints.size();
      break;
    case MGE_ATTR_FLOATS:
      store.floats = py::cast<std::vector<double>>(value);
      attr.value.floats = store.floats.data();
      count = store.floats.size();
      break;
    case MGE_ATTR_STRINGS:
      store.strings = py::cast<std::vector<std::string>>(value);
      for (const std::string& text : store.strings) store.pointers.push_back(text.c_str());
      attr.value.strings = store.pointers.data();
      count = store.strings.size();
      break;
    case MGE_ATTR_DTYPES:
      for (py::handle item : py::cast<py::sequence>(value)) store.dtypes.push_back(dtype_of(item));
      attr.value.dtypes = store.dtypes.data();
      count = store.dtypes.size();
      break;
    default:
      throw py::value_error("kind of attribute " + store.name);
  }
  attr.count = static_cast<uint32_t>(count);
  attrs_.push_back(attr);
}

// ---- Memory ----

// A pool of one device: blocks that NumPy sees where it is host memory, else Blocks.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  // Goes back to its pool when the last reference dies.
  struct Block {
    std::shared_ptr<DevicePool> owner;
    void* memory;
    size_t nbytes;
    bool is_pooled;
    Block(std::shared_ptr<DevicePool> pool, void* start, size_t size, bool pooled)
        : owner(std::move(pool)), memory(start), nbytes(size), is_pooled(pooled) {}
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() {
      if (is_pooled)
        owner->pool_.give(memory, nbytes);
      else
        owner->raw_.free(memory, nbytes);
    }
  };

  DevicePool(const Backend& backend, int32_t device, bool is_host)
      : raw_(backend, device), pool_(raw_), is_host_(is_host) {}

  MemoryPool& pool() { return pool_; }

  // (block, None), or (None, (status, text)).
  py::tuple take(size_t nbytes) { return wrap(nbytes, true); }
  // The same, past the cache and the statistics: for arenas.
  py::tuple allocate(size_t nbytes) { return wrap(nbytes, false); }

 private:
  py::tuple wrap(size_t nbytes, bool is_pooled) {
    void* memory = nullptr;
    MgeError error = no_error();
    size_t size = MemoryPool::rounded(nbytes);
    int status = is_pooled ? pool_.take(nbytes, &memory, &error) : pool_.allocate(size, &memory, &error);
    if (status != MGE_OK) return py::make_tuple(py::none(), py::make_tuple(status, std::string(error.message)));
    auto block = std::make_unique<Block>(shared_from_this(), memory, size, is_pooled);
    if (!is_host_) return py::make_tuple(py::cast(std::move(block)), py::none());
    py::capsule owner(block.release(), [](void* p) { delete static_cast<Block*>(p); });
    py::array_t<uint8_t> array({size}, {1}, static_cast<uint8_t*>(memory), owner);
    return py::make_tuple(std::move(array), py::none());
  }

  DeviceMemory raw_;
  MemoryPool pool_;
  const bool is_host_;
};

// Scratch for kernels that run by themselves, and the stream that they run on.
struct Alone {
  DeviceMemory raw;
  MemoryPool pool;
  void* stream = nullptr;
  MgeError error = no_error();

  Alone(const Backend& backend, int32_t device) : raw(backend, device), pool(raw) {
    if (backend.has_streams()) backend.table().stream_create(device, &stream, &error);
  }

  static Alone& of(const Backend& backend, int32_t device) {
    static std::mutex* lock = new std::mutex;
    static auto* all = new std::map<std::pair<const Backend*, int32_t>, Alone*>;
    std::lock_guard<std::mutex> hold(*lock);
    Alone*& found = (*all)[{&backend, device}];
    if (!found) found = new Alone(backend, device);
    return *found;
  }
};

// ---- Kernels ----


py::object result_of(int status, const MgeError& error) {
  if (status == MGE_OK) return py::none();
  return py::make_tuple(status, std::string(error.message, strnlen(error.message, sizeof error.message)));
}

class CallableKernel {
 public:
  CallableKernel(std::shared_ptr<Kernel> kernel, std::shared_ptr<TypeHolder> inputs, std::shared_ptr<TypeHolder> outputs)
      : kernel_(std::move(kernel)), inputs_(std::move(inputs)), outputs_(std::move(outputs)),
        place_(kernel_->backend().dlpack_device(kernel_->device())) {}

  const std::shared_ptr<Kernel>& kernel() const { return kernel_; }

  // None, or (status, text).
  py::object call(const py::sequence& inputs, const py::sequence& outputs) { return repeat(inputs, outputs, 1); }

  // The same, `count` times in a row: what a benchmark subtracts.
  py::object repeat(const py::sequence& inputs, const py::sequence& outputs, int64_t count) {
    if (inputs.size() != inputs_->types.size() || outputs.size() != outputs_->types.size())
      throw py::value_error("the number of arrays differs from the number of inputs or outputs");
    std::vector<MgeTensor> tensors(inputs.size() + outputs.size());
    std::vector<MgeTensor*> pointers(tensors.size());
    for (size_t i = 0; i < inputs.size(); ++i) pointers[i] = fill(tensors[i], inputs[i], *inputs_, i, false);
    for (size_t i = 0; i < outputs.size(); ++i) {
      size_t at = inputs.size() + i;
      pointers[at] = fill(tensors[at], outputs[i], *outputs_, i, true);
    }
    MgeError error = no_error();
    int status = MGE_OK;
    {
      py::gil_scoped_release release;
      for (int64_t i = 0; i < count && status == MGE_OK; ++i)
        status = run(pointers.data(), pointers.data() + inputs.size(), &error);
    }
    return result_of(status, error);
  }

 private:
  MgeTensor* fill(MgeTensor& tensor, const py::object& from, const TypeHolder& types, size_t i, bool is_output) const {
    if (is_output && from.is_none()) {
      if (kernel_->flags() & MGE_KERNEL_OPTIONAL_OUT) return nullptr;
      throw py::value_error("an output is None, and the kernel has not OPTIONAL_OUT");
    }
    tensor = MgeTensor{};
    tensor.data = data_of(from, types.nbytes[i]);
    tensor.device = place_;
    tensor.ndim = types.types[i].ndim;
    tensor.dtype = types.types[i].dtype;
    tensor.shape = const_cast<int64_t*>(types.types[i].shape);
    return &tensor;
  }

  void* data_of(const py::object& from, size_t nbytes) const {
    bool is_good, is_array = py::isinstance<py::array>(from);
    void* data;
    if (is_array) {
      auto array = py::reinterpret_borrow<py::array>(from);
      is_good = static_cast<size_t>(array.nbytes()) == nbytes && (array.flags() & py::array::c_style);
      data = const_cast<void*>(array.data());
    } else {  // a DeviceArray
      is_good = py::cast<size_t>(from.attr("nbytes")) == nbytes;
      data = reinterpret_cast<void*>(py::cast<uintptr_t>(from.attr("address")));
    }
    if (!is_good) throw py::value_error("an array has another size than the kernel was made for, or is not dense");
    if (is_array != (place_.type == 1)) throw py::value_error("an array is in another memory than the kernel's");
    return nbytes ? data : nullptr;
  }

  int run(MgeTensor** inputs, MgeTensor** outputs, MgeError* error) {
    Alone& alone = Alone::of(kernel_->backend(), kernel_->device());
    if (alone.error.code != MGE_OK) return *error = alone.error, error->code;
    void* workspace = nullptr;
    size_t nbytes = kernel_->workspace_bytes();
    if (nbytes && alone.pool.take(nbytes, &workspace, error) != MGE_OK) return error->code;
    int status = kernel_->run(alone.stream, const_cast<const MgeTensor* const*>(inputs), outputs, workspace, error);
    if (alone.stream) {
      MgeError late = no_error();
      int synced = kernel_->backend().table().stream_sync(alone.stream, &late);
      if (status == MGE_OK && synced != MGE_OK) status = synced, *error = late;
    }
    if (workspace) alone.pool.give(workspace, nbytes);
    return status;
  }

  std::shared_ptr<Kernel> kernel_;
  std::shared_ptr<TypeHolder> inputs_, outputs_;
  const MgeDevice place_;
};

// (kernel, None), or (None, (status, text)).
py::tuple prepare(const Backend& backend, int32_t device, const std::shared_ptr<OpHolder>& op) {
  MgeError error = no_error();
  std::shared_ptr<Kernel> kernel;
  {
    py::gil_scoped_release release;
    kernel = Kernel::prepare(backend, device, op->op, &error);
  }
  if (!kernel) return py::make_tuple(py::none(), result_of(error.code, error));
  auto inputs = std::shared_ptr<TypeHolder>(op, const_cast<TypeHolder*>(&op->inputs));  // share the op's
  auto outputs = std::shared_ptr<TypeHolder>(op, const_cast<TypeHolder*>(&op->outputs));
  return py::make_tuple(std::make_shared<CallableKernel>(kernel, inputs, outputs), py::none());
}

py::tuple compile(const Backend& backend, int32_t device, const std::shared_ptr<GraphHolder>& graph) {
  auto inputs = std::make_shared<TypeHolder>(graph->input_types());
  auto outputs = std::make_shared<TypeHolder>(graph->output_types());
  MgeError error = no_error();
  std::shared_ptr<Kernel> kernel;
  {
    py::gil_scoped_release release;
    kernel = Kernel::compile(backend, device, graph->graph, &error);
  }
  if (!kernel) return py::make_tuple(py::none(), result_of(error.code, error));
  return py::make_tuple(std::make_shared<CallableKernel>(kernel, inputs, outputs), py::none());
}

// ---- Plans ----

class Plan : private HostCalls {
 public:
  // values: (code, bits, shape, place, at, memory) each; steps: (kernel, or (backend, device, kind, bytes) of a copy,
  // or None, inputs, outputs, stream, waits, records, memory) each; calls: for each step in Python (callable,
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
  uint32_t step() const { return step_; }

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
    thread_ = PyEval_SaveThread();
    RunFailure failure = executor_->run(regions_.data(), inputs_.data(), results_.data(), this, clock);
    PyEval_RestoreThread(thread_);
    step_ = failure.step;
    if (failure.kind == RunFailure::NONE) return py::none();
    if (failure.kind != RunFailure::KERNEL) throw py::error_already_set();
    return result_of(failure.error.code, failure.error);
  }

 private:
  static void addresses(const py::list& arrays, const std::vector<size_t>& nbytes, void** to) {
    if (arrays.size() != nbytes.size()) throw py::value_error("another number of arrays than the plan has");
    for (size_t i = 0; i < nbytes.size(); ++i) {
      py::handle item = PyList_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i));
      if (PyLong_Check(item.ptr())) {  // the address of a DeviceArray
        to[i] = reinterpret_cast<void*>(py::cast<uintptr_t>(item));
        continue;
      }
      if (!py::isinstance<py::array>(item)) throw py::type_error("not an array");
      auto array = py::reinterpret_borrow<py::array>(item);
      if (static_cast<size_t>(array.nbytes()) < nbytes[i] || !(array.flags() & py::array::c_style))
        throw py::value_error("an array is smaller than the plan's value, or not dense");
      to[i] = const_cast<void*>(array.data());
    }
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

// ---- The rest ----

std::atomic<int> log_level{1};
std::atomic<bool> host_is_made{false};

void log_line(int level, const char* plugin, const char* message) {
  if (level <= log_level.load()) fprintf(stderr, "mge: %s: %s\n", plugin, message);
}

// (backend, None), or (None, (kind, text)).
py::tuple load(const std::string& path) {
  static const char* const kinds[] = {"", "failed", "incompatible", "contract"};
  LoadProblem problem;
  const Backend* backend;
  host_is_made = true;
  {
    py::gil_scoped_release release;
    backend = Backend::load(path, &problem);
  }
  if (!backend) return py::make_tuple(py::none(), py::make_tuple(kinds[problem.kind], problem.text));
  return py::make_tuple(py::cast(backend, py::return_value_policy::reference), py::none());
}

void set_threads(int32_t count) {
  if (host_is_made && count != thread_count())
    throw py::value_error("the number of threads is fixed once a library is loaded");
  py::gil_scoped_release release;
  set_thread_count(count);
}

// Seconds of one region with one chunk for each thread, over `repeats`: what a kernel pays.
double region_seconds(int64_t repeats, int64_t chunks) {
  py::gil_scoped_release release;
  auto body = [](int64_t, int64_t, int32_t, void*) {};
  auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) parallel_for(chunks, 1, body, nullptr);
  std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / static_cast<double>(repeats);
}

py::object device_info(const Backend& backend, int32_t device) {
  MgeDeviceInfo info{};
  info.struct_size = sizeof info;
  MgeError error = no_error();
  int status = backend.table().device_info(device, &info, &error);
  if (status != MGE_OK) return result_of(status, error);
  info.name[sizeof info.name - 1] = 0;
  py::dict found;
  found["name"] = std::string(info.name);
  found["is_host"] = bool(info.flags & MGE_DEVICE_HOST_MEMORY);
  found["dlpack_type"] = backend.dlpack_device(device).type;
  found["memory_bytes"] = info.memory_bytes;
  found["stream_count"] = info.stream_count ? info.stream_count : 1;
  found["capabilities"] = std::string(info.capabilities ? info.capabilities : "");
  return std::move(found);
}

// None, or (status, text).
py::object copy(const Backend& backend, int32_t device, uintptr_t to, uintptr_t from, size_t nbytes, int kind) {
  MgeError error = no_error();
  int status;
  {
    py::gil_scoped_release release;
    status = backend.table().mem_copy(device, reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), nbytes,
                                      static_cast<MgeCopyKind>(kind), nullptr, &error);
  }
  return result_of(status, error);
}

py::object supports(const Backend& backend, int32_t device, const OpHolder& op) {
  char reason[256] = "";
  if (backend.table().supports(device, &op.op, reason, sizeof reason)) return py::none();
  reason[sizeof reason - 1] = 0;
  return py::str(reason[0] ? reason : "refused without a reason");
}

}  // namespace
}  // namespace mge

PYBIND11_MODULE(_native, m) {
  using namespace mge;
  m.doc() = "The native core of mge; mge.native is its face.";
  m.attr("ABI") = py::make_tuple(MGE_ABI_MAJOR, MGE_ABI_MINOR);
  set_log_sink(log_line);
  m.def("load", load);
  m.def("set_threads", set_threads);
  m.def("thread_count", thread_count);
  m.def("region_seconds", region_seconds);
  m.def("set_log_level", [](int level) { log_level = level; });
  m.def("set_core_version", set_core_version);
  m.def("prepare", prepare);
  m.def("compile", compile);
  m.def("device_info", device_info);
  m.def("supports", supports);
  m.def("copy", copy);

  py::class_<Backend, std::unique_ptr<Backend, py::nodelete>>(m, "Backend")
      .def_property_readonly("path", &Backend::path)
      .def_property_readonly("name", [](const Backend& b) { return std::string(b.table().name); })
      .def_property_readonly("vendor", [](const Backend& b) { return std::string(b.table().vendor ? b.table().vendor : ""); })
      .def_property_readonly("version", [](const Backend& b) { return std::string(b.table().version ? b.table().version : ""); })
      .def_property_readonly("abi", [](const Backend& b) { return py::make_tuple(b.table().abi_major, b.table().abi_minor); })
      .def_property_readonly("priority", [](const Backend& b) { return b.table().priority; })
      .def_property_readonly("device_count", [](const Backend& b) { return b.table().device_count(); })
      .def_property_readonly("has_streams", &Backend::has_streams)
      .def_property_readonly("has_graphs", &Backend::has_graphs);

  py::class_<OpHolder, std::shared_ptr<OpHolder>>(m, "Op")
      .def(py::init<std::string, py::sequence, py::sequence, py::sequence, uint32_t, py::sequence>());
  py::class_<GraphHolder, std::shared_ptr<GraphHolder>>(m, "Graph")
      .def(py::init<py::sequence, py::sequence, std::vector<uint32_t>, std::vector<uint32_t>, py::dict>());

  py::class_<CallableKernel, std::shared_ptr<CallableKernel>>(m, "Kernel")
      .def("__call__", &CallableKernel::call)
      .def("repeat", &CallableKernel::repeat)
      .def_property_readonly("name", [](const CallableKernel& k) { return k.kernel()->name(); })
      .def_property_readonly("flags", [](const CallableKernel& k) { return k.kernel()->flags(); })
      .def_property_readonly("workspace_bytes", [](const CallableKernel& k) { return k.kernel()->workspace_bytes(); })
      .def_property_readonly("inplace", [](const CallableKernel& k) {
        std::vector<std::pair<uint32_t, uint32_t>> pairs;
        for (const MgeInplacePair& pair : k.kernel()->inplace()) pairs.emplace_back(pair.input, pair.output);
        return pairs;
      });

  py::class_<DevicePool, std::shared_ptr<DevicePool>>(m, "Pool")
      .def(py::init([](const Backend& b, int32_t device, bool is_host) {
        return std::make_shared<DevicePool>(b, device, is_host);
      }))
      .def("take", &DevicePool::take)
      .def("allocate", &DevicePool::allocate)
      .def("trim", [](DevicePool& p) { p.pool().trim(); })
      .def("set_limit", [](DevicePool& p, uint64_t nbytes) { p.pool().set_limit(nbytes); })
      .def("set_cache_limit", [](DevicePool& p, uint64_t nbytes) { p.pool().set_cache_limit(nbytes); })
      .def("reset_peak", [](DevicePool& p) { p.pool().reset_peak(); })
      .def("statistics", [](DevicePool& p) {
        MemoryStatistics s = p.pool().statistics();
        py::dict found;
        found["in_use_bytes"] = s.in_use_bytes;
        found["cached_bytes"] = s.cached_bytes;
        found["peak_bytes"] = s.peak_bytes;
        found["peak_reserved_bytes"] = s.peak_reserved_bytes;
        found["live_blocks"] = s.live_blocks;
        found["allocations"] = s.allocations;
        found["cache_hits"] = s.cache_hits;
        return found;
      });

  py::class_<DevicePool::Block>(m, "Block")
      .def_property_readonly("address", [](const DevicePool::Block& b) { return reinterpret_cast<uintptr_t>(b.memory); })
      .def_readonly("nbytes", &DevicePool::Block::nbytes);

  py::class_<Plan>(m, "Plan")
      .def(py::init<py::sequence, py::sequence, py::sequence, std::vector<size_t>, std::vector<size_t>,
                    std::vector<std::pair<int32_t, int32_t>>, std::vector<std::pair<size_t, size_t>>>())
      .def_property_readonly("failure", &Plan::failure)
      .def_property_readonly("step", &Plan::step)
      .def("run", &Plan::run);

  m.def("tuning_open", [](const std::string& path) { TuningCache::instance().open(path); });
  m.def("tuning_get", [](const std::string& key) -> py::object {
    std::string value;
    if (!TuningCache::instance().get(key, &value)) return py::none();
    return py::bytes(value);
  });
  m.def("tuning_put", [](const std::string& key, const py::bytes& value) {
    TuningCache::instance().put(key, std::string(value));
  });
  m.def("tuning_statistics", [] {
    TuningCache& cache = TuningCache::instance();
    return py::make_tuple(cache.size(), cache.damaged(), cache.hash());
  });
}
