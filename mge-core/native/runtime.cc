#include "mge/runtime.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "backend.hpp"
#include "executor.hpp"
#include "plan_file.hpp"
#include "thread_pool.hpp"
#include "tuning_cache.hpp"

namespace mge::runtime {
namespace {

std::string text_of(const MgeError& error) {
  std::string text(error.message, strnlen(error.message, sizeof error.message));
  return text.empty() ? "it gave no reason" : text;
}

// Memory of the device.
class Memory {
 public:
  Memory(const Backend& backend, int32_t device) : raw_(backend, device) {}
  ~Memory() {
    for (const auto& block : blocks_) raw_.free(block.first, block.second);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* take(uint64_t nbytes) {
    size_t rounded = MemoryPool::in_lines(nbytes);
    MgeError error = no_error();
    void* memory = nullptr;
    if (raw_.allocate(rounded, &memory, &error) != MGE_OK)
      throw Error("memory: " + std::to_string(rounded) + " bytes of the device: " + text_of(error));
    blocks_.emplace_back(memory, rounded);
    return memory;
  }

 private:
  DeviceMemory raw_;
  std::vector<std::pair<void*, size_t>> blocks_;
};

std::vector<uint8_t> bytes_of(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "rb"), fclose);
  if (!file) throw Error(path + ": " + strerror(errno));
  std::vector<uint8_t> bytes;
  if (fseek(file.get(), 0, SEEK_END) != 0) throw Error(path + ": " + strerror(errno));
  long size = ftell(file.get());
  if (size < 0 || fseek(file.get(), 0, SEEK_SET) != 0) throw Error(path + ": " + strerror(errno));
  if (static_cast<unsigned long>(size) > (1ul << 48)) throw Error(path + ": it is no file");
  bytes.resize(static_cast<size_t>(size));
  if (fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) throw Error(path + ": it cannot be read");
  return bytes;
}

std::string name_of(MgeDataType dtype) {
  static const std::map<int, std::string> names = {
      {MGE_INT, "int"}, {MGE_UINT, "uint"}, {MGE_FLOAT, "float"}, {MGE_BFLOAT, "bfloat"}};
  return dtype.code == MGE_BOOL ? "bool" : names.at(dtype.code) + std::to_string(dtype.bits);
}

TensorInfo info_of(const std::string& name, const PlanFile::Type& type) {
  return {name, name_of(type.dtype), type.shape, type.nbytes};
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % ALIGNMENT == 0; }

bool overlap(const Input& x, const Output& y) {
  auto a = reinterpret_cast<uintptr_t>(x.data), b = reinterpret_cast<uintptr_t>(y.data);
  return a < b + y.nbytes && b < a + x.nbytes;
}

void copy(void* to, const void* from, size_t nbytes) {
  if (nbytes) memcpy(to, from, nbytes);
}

std::string count_of(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// `constants`: where the blocks of the file are, by their numbers.
std::shared_ptr<Kernel> prepared(const Backend& backend, int32_t device, const PlanFile::Program& program,
                                 const PlanFile::Step& step, const std::vector<void*>& constants) {
  auto types_of = [&](const std::vector<uint32_t>& which) {
    std::vector<MgeTensorType> types;
    for (uint32_t v : which) {
      const PlanFile::Type& type = program.values[v].type;
      types.push_back({type.dtype, static_cast<int32_t>(type.shape.size()), type.shape.data()});
    }
    return types;
  };
  std::vector<std::vector<const char*>> pointers;  // of attributes that are tuples of texts
  std::vector<MgeAttr> attrs;
  for (const PlanFile::Attr& from : step.attrs) {
    MgeAttr attr{};
    attr.name = from.name.c_str();
    attr.kind = from.kind;
    size_t count = 0;
    switch (from.kind) {
      case MGE_ATTR_INT:
      case MGE_ATTR_BOOL: attr.value.i = from.i; break;
      case MGE_ATTR_FLOAT: attr.value.f = from.f; break;
      case MGE_ATTR_DTYPE: attr.value.dtype = from.dtype; break;
      case MGE_ATTR_STRING: attr.value.s = from.text.c_str(), count = from.text.size(); break;
      case MGE_ATTR_BYTES:
        attr.value.bytes = reinterpret_cast<const uint8_t*>(from.text.data()), count = from.text.size();
        break;
      case MGE_ATTR_INTS:
      case MGE_ATTR_BOOLS: attr.value.ints = from.ints.data(), count = from.ints.size(); break;
      case MGE_ATTR_FLOATS: attr.value.floats = from.floats.data(), count = from.floats.size(); break;
      case MGE_ATTR_DTYPES: attr.value.dtypes = from.dtypes.data(), count = from.dtypes.size(); break;
      case MGE_ATTR_STRINGS:
        pointers.emplace_back();
        for (const std::string& text : from.strings) pointers.back().push_back(text.c_str());
        attr.value.strings = pointers.back().data(), count = from.strings.size();
        break;
    }
    attr.count = static_cast<uint32_t>(count);
    attrs.push_back(attr);
  }
  std::vector<MgeTensorType> inputs = types_of(step.inputs), outputs = types_of(step.outputs);
  MgeOp op{};
  op.struct_size = sizeof op;
  op.op_version = 1;
  op.name = step.op.c_str();
  op.attrs = attrs.data();
  op.inputs = inputs.data();
  op.outputs = outputs.data();
  op.attr_count = static_cast<uint32_t>(attrs.size());
  op.input_count = static_cast<uint32_t>(inputs.size());
  op.output_count = static_cast<uint32_t>(outputs.size());
  op.flags = step.flags;
  std::vector<MgeTensor> known(step.inputs.size());
  std::vector<const MgeTensor*> values;  // of the inputs that never change
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    const PlanFile::Storage& storage = program.storages[program.values[step.inputs[i]].storage];
    MgeTensor& tensor = known[i];
    tensor.device = {1, 0};
    tensor.ndim = inputs[i].ndim, tensor.dtype = inputs[i].dtype;
    tensor.shape = const_cast<int64_t*>(inputs[i].shape);
    if (storage.kind == PlanFile::CONSTANT) tensor.data = constants[storage.at];
    values.push_back(storage.kind == PlanFile::CONSTANT ? &tensor : nullptr);
  }
  op.constants = values.data();
  std::string where = "op " + step.op + ": ";
  std::string other = "; the plan was compiled with another version of the library: run mge compile again";
  char reason[256] = "";
  if (!backend.table().supports(device, &op, reason, sizeof reason)) {
    reason[sizeof reason - 1] = 0;
    throw Error(where + "the library refuses it (" + (reason[0] ? reason : "no reason given") + ")" + other);
  }
  MgeError error = no_error();
  std::shared_ptr<Kernel> kernel = Kernel::prepare(backend, device, op, &error);
  if (!kernel) throw Error(where + text_of(error));
  // What the plan writes over an input, this version must allow too.
  for (uint32_t o = 0; o < step.outputs.size(); ++o)
    for (uint32_t i = 0; i < step.inputs.size(); ++i) {
      const PlanFile::Value &x = program.values[step.inputs[i]], &y = program.values[step.outputs[o]];
      if (!x.type.nbytes || !y.type.nbytes) continue;
      const PlanFile::Storage &a = program.storages[x.storage], &b = program.storages[y.storage];
      bool same = x.storage == y.storage;
      bool crossed = a.kind == PlanFile::ARENA && b.kind == PlanFile::ARENA && a.at < b.at + b.nbytes && b.at < a.at + a.nbytes;
      if (!same && !crossed) continue;
      const auto& pairs = kernel->inplace();
      bool allowed = same && std::any_of(pairs.begin(), pairs.end(), [&](const MgeInplacePair& pair) {
        return pair.input == i && pair.output == o;
      });
      if (!allowed) throw Error(where + "the plan writes its output over an input, which the kernel does not allow" + other);
    }
  return kernel;
}

}  // namespace

struct Plan::Impl {
  // The plan of one batch size, ready to run.
  struct Program {
    const PlanFile::Program* from;
    std::unique_ptr<Executor> executor;
    std::vector<void*> own_inputs, own_results, inputs, results;  // those of device memory: made on first need
    std::vector<int> result_output;  // for each result the output that it can be written to directly, or -1
    std::vector<std::string> kernels;
  };

  const Backend* backend = nullptr;
  PlanFile file;
  Device device;
  int32_t index = 0;
  bool is_direct = false;  // the device works on the host's own memory
  std::unique_ptr<Memory> memory;
  std::vector<void*> constants, states;
  void *arena = nullptr, *workspace = nullptr, *spare = nullptr;
  std::vector<Program> programs;
  bool is_profiling = false;
  const Program* profiled = nullptr;
  std::vector<int64_t> times;
  mutable std::mutex lock;

  void set_up(const uint8_t* data, const std::string& path);
  void make(const PlanFile::Program& from);
  Program& find(const std::vector<Input>& inputs);
  void run(Program& program, const std::vector<Input>& inputs, const std::vector<Output>& outputs);
  void* storage_at(const Program& program, uint32_t storage) const;

  const PlanFile::Program& at(int64_t batch) const {
    if (batch < 0) return file.programs.front();
    for (const PlanFile::Program& program : file.programs)
      if (program.batch == batch) return program;
    throw Error("batch " + std::to_string(batch) + ": the plan was compiled for " + batches_text());
  }
  std::string batches_text() const {
    std::string text;
    for (const PlanFile::Program& program : file.programs)
      text += (text.empty() ? "batch " : ", ") + std::to_string(program.batch);
    return text;
  }
  size_t state(const std::string& name, size_t nbytes) const {
    for (size_t s = 0; s < file.states.size(); ++s) {
      if (file.states[s].port.name != name) continue;
      if (file.states[s].port.type.nbytes != nbytes)
        throw Error("state " + name + ": it has " + std::to_string(file.states[s].port.type.nbytes) +
                    " bytes; given are " + std::to_string(nbytes));
      return s;
    }
    throw Error("state " + name + ": the plan has none of this name");
  }
};

void Plan::Impl::set_up(const uint8_t* data, const std::string& path) {
  const MgeBackend& table = backend->table();
  if (file.backend != table.name)
    throw Error(path + ": it was compiled for " + file.backend + "; " + backend->path() + " is " + table.name);
  int32_t count = table.device_count();
  if (index < 0 || index >= count)
    throw Error(path + ": device " + file.backend + ":" + std::to_string(index) + " is not here; the library finds " +
                count_of(static_cast<size_t>(std::max(count, 0)), "device"));
  MgeDeviceInfo info{};
  info.struct_size = sizeof info;
  MgeError error = no_error();
  if (table.device_info(index, &info, &error) != MGE_OK) throw Error(file.backend + ": " + text_of(error));
  if (!(info.flags & MGE_DEVICE_HOST_MEMORY))
    throw Error(file.backend + ": the host cannot read this device's memory, which this version needs");
  is_direct = info.dlpack_type == 0 || info.dlpack_type == 1;
  auto or_empty = [](const char* text) { return std::string(text ? text : ""); };
  device = {file.backend + ":" + std::to_string(index), backend->path(), or_empty(table.vendor), or_empty(table.version),
            file.backend_version};
  memory = std::make_unique<Memory>(*backend, index);

  std::vector<bool> is_read(file.blocks.size());  // blocks that only give a state its first value are not kept
  for (const PlanFile::Program& program : file.programs)
    for (const PlanFile::Storage& storage : program.storages)
      if (storage.kind == PlanFile::CONSTANT) is_read[storage.at] = true;
  for (size_t b = 0; b < file.blocks.size(); ++b) {
    constants.push_back(is_read[b] ? memory->take(file.blocks[b].nbytes) : nullptr);
    if (is_read[b]) copy(constants[b], data + file.data_at + file.blocks[b].at, file.blocks[b].nbytes);
  }
  size_t update_bytes = 0;
  for (const PlanFile::State& state : file.states) {
    const PlanFile::Block& block = file.blocks[state.block];
    states.push_back(memory->take(block.nbytes));
    copy(states.back(), data + file.data_at + block.at, block.nbytes);
  }
  uint64_t arena_bytes = 0;
  size_t workspace_bytes = 0;
  for (const PlanFile::Program& program : file.programs) {
    make(program);
    arena_bytes = std::max(arena_bytes, program.arena_bytes);
    workspace_bytes = std::max(workspace_bytes, programs.back().executor->workspace_bytes());
    size_t nbytes = 0;  // of updates whose value is itself in a state: all are read before any is written
    for (const PlanFile::Update& update : program.updates) {
      const PlanFile::Value& value = program.values[update.value];
      if (program.storages[value.storage].kind == PlanFile::STATE) nbytes += value.type.nbytes;
    }
    update_bytes = std::max(update_bytes, nbytes);
  }
  arena = memory->take(arena_bytes);
  workspace = memory->take(workspace_bytes);
  if (update_bytes) spare = memory->take(update_bytes);
}

void Plan::Impl::make(const PlanFile::Program& from) {
  programs.emplace_back();
  Program& program = programs.back();
  program.from = &from;
  std::vector<PlanValue> values;
  for (const PlanFile::Value& value : from.values) {
    const PlanFile::Storage& storage = from.storages[value.storage];
    PlanValue made{value.type.dtype, value.type.shape, Place::FIXED, storage.at};
    switch (storage.kind) {
      case PlanFile::ARENA: made.place = Place::ARENA; break;
      case PlanFile::CONSTANT: made.at = reinterpret_cast<uint64_t>(constants[storage.at]); break;
      case PlanFile::STATE: made.at = reinterpret_cast<uint64_t>(states[storage.at]); break;
      case PlanFile::INPUT: made.place = Place::INPUT; break;
      case PlanFile::RESULT: made.place = Place::RESULT; break;
    }
    values.push_back(std::move(made));
  }
  std::vector<PlanStep> steps;
  for (const PlanFile::Step& step : from.steps) {
    PlanStep made;
    made.kernel = prepared(*backend, index, from, step, constants);
    made.inputs = step.inputs;
    made.outputs = step.outputs;
    made.stream = static_cast<int32_t>(step.stream);
    made.waits = step.waits;
    made.records = step.records;
    program.kernels.push_back(made.kernel->name());
    steps.push_back(std::move(made));
  }
  MgeError error = no_error();
  program.executor = std::make_unique<Executor>(std::move(values), std::move(steps), &error);
  if (!program.executor->is_good()) throw Error(device.name + ": " + text_of(error));
  program.own_inputs.resize(from.inputs.size());
  program.own_results.resize(from.result_count);
  program.inputs.resize(from.inputs.size());
  program.results.resize(from.result_count);
  program.result_output.assign(from.result_count, -1);
  for (size_t o = 0; o < from.outputs.size(); ++o) {
    const PlanFile::Value& value = from.values[from.outputs[o].value];
    const PlanFile::Storage& storage = from.storages[value.storage];
    if (storage.kind == PlanFile::RESULT && storage.nbytes == value.type.nbytes)
      program.result_output[storage.at] = static_cast<int>(o);
  }
}

void* Plan::Impl::storage_at(const Program& program, uint32_t index) const {
  const PlanFile::Storage& storage = program.from->storages[index];
  switch (storage.kind) {
    case PlanFile::ARENA: return static_cast<char*>(arena) + storage.at;
    case PlanFile::CONSTANT: return constants[storage.at];
    case PlanFile::STATE: return states[storage.at];
    case PlanFile::INPUT: return program.inputs[storage.at];
    case PlanFile::RESULT: return program.results[storage.at];
  }
  return nullptr;
}

Plan::Impl::Program& Plan::Impl::find(const std::vector<Input>& inputs) {
  auto fits = [&](const Program& program) {
    const auto& ports = program.from->inputs;
    return std::equal(ports.begin(), ports.end(), inputs.begin(), inputs.end(),
                      [](const PlanFile::Port& port, const Input& input) { return port.type.nbytes == input.nbytes; });
  };
  for (Program& program : programs)
    if (fits(program)) return program;
  std::string text = "run: the inputs have";
  for (const Input& input : inputs) text += " " + std::to_string(input.nbytes);
  text += inputs.empty() ? " no" : "";
  text += " bytes; the plan takes";
  for (const Program& program : programs) {
    text += (&program == &programs.front() ? "" : "; or");
    for (const PlanFile::Port& port : program.from->inputs) {
      text += " " + port.name + ": " + name_of(port.type.dtype) + "[";
      for (size_t i = 0; i < port.type.shape.size(); ++i) text += (i ? "," : "") + std::to_string(port.type.shape[i]);
      text += "] of " + std::to_string(port.type.nbytes);
    }
  }
  throw Error(text);
}

void Plan::Impl::run(Program& program, const std::vector<Input>& inputs, const std::vector<Output>& outputs) {
  const PlanFile::Program& from = *program.from;
  if (outputs.size() != from.outputs.size())
    throw Error("run: " + count_of(outputs.size(), "output") + "; the plan has " + std::to_string(from.outputs.size()));
  for (size_t o = 0; o < outputs.size(); ++o) {
    size_t nbytes = from.values[from.outputs[o].value].type.nbytes;
    if (outputs[o].nbytes != nbytes)
      throw Error("run: output " + from.outputs[o].name + " has " + std::to_string(outputs[o].nbytes) +
                  " bytes; the plan writes " + std::to_string(nbytes));
    if (nbytes && !outputs[o].data) throw Error("run: output " + from.outputs[o].name + " is NULL");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if (input.nbytes && !input.data) throw Error("run: input " + from.inputs[i].name + " is NULL");
    bool direct = is_direct && is_aligned(input.data) &&
                  std::none_of(outputs.begin(), outputs.end(), [&](const Output& out) { return overlap(input, out); });
    if (direct) {
      program.inputs[i] = const_cast<void*>(input.data);
      continue;
    }
    if (!program.own_inputs[i]) program.own_inputs[i] = memory->take(input.nbytes);
    program.inputs[i] = program.own_inputs[i];
    copy(program.inputs[i], input.data, input.nbytes);
  }
  std::vector<uint64_t> result_bytes(from.result_count);
  for (const PlanFile::Storage& storage : from.storages)
    if (storage.kind == PlanFile::RESULT) result_bytes[storage.at] = storage.nbytes;
  for (size_t r = 0; r < program.results.size(); ++r) {
    int o = program.result_output[r];
    if (o >= 0 && is_direct && is_aligned(outputs[static_cast<size_t>(o)].data)) {
      program.results[r] = outputs[static_cast<size_t>(o)].data;
      continue;
    }
    if (!program.own_results[r]) program.own_results[r] = memory->take(result_bytes[r]);
    program.results[r] = program.own_results[r];
  }

  int64_t* clock = nullptr;
  if (is_profiling) {
    times.assign(2 * from.steps.size(), 0);
    profiled = &program;
    clock = times.data();
  }
  const Region region{arena, workspace};
  RunFailure failure =
      program.executor->run(&region, program.inputs.data(), program.results.data(), nullptr, clock);
  if (failure.kind != RunFailure::NONE) {
    const PlanFile::Step& step = from.steps.at(failure.step);
    throw Error("run: step " + std::to_string(failure.step) + ", op " + step.op + ": " + text_of(failure.error));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    const PlanFile::Value& value = from.values[from.outputs[o].value];
    void* made = storage_at(program, value.storage);
    if (made != outputs[o].data) copy(outputs[o].data, made, value.type.nbytes);
  }
  char* kept = static_cast<char*>(spare);
  std::vector<const void*> values;
  for (const PlanFile::Update& update : from.updates) {
    const PlanFile::Value& value = from.values[update.value];
    const void* made = storage_at(program, value.storage);
    if (from.storages[value.storage].kind == PlanFile::STATE) {
      copy(kept, made, value.type.nbytes);
      made = kept;
      kept += value.type.nbytes;
    }
    values.push_back(made);
  }
  for (size_t u = 0; u < values.size(); ++u) {
    const PlanFile::Update& update = from.updates[u];
    copy(states[update.state], values[u], from.values[update.value].type.nbytes);
  }
}

Plan::Plan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

Plan Plan::load(const std::string& path, const std::string& backend_library, const Options& options) {
  static std::mutex* first_lock = new std::mutex;
  static bool is_set_up = false;
  auto impl = std::make_unique<Impl>();
  std::vector<uint8_t> bytes = bytes_of(path);
  try {
    impl->file = PlanFile::read(bytes.data(), bytes.size());
  } catch (const BadPlanFile& error) {
    throw Error(path + ": " + error.what());
  }
  {
    std::lock_guard<std::mutex> hold(*first_lock);
    if (!is_set_up) {
      const char* given = getenv("MGE_THREADS");
      set_thread_count(options.threads > 0 ? options.threads : given ? std::max(atoi(given), 0) : 0);
      set_core_version(impl->file.core);
      is_set_up = true;
    }
    if (!options.tuning_file.empty()) TuningCache::instance().open(options.tuning_file);
  }
  LoadProblem problem;
  impl->backend = Backend::load(backend_library, &problem);
  if (!impl->backend) throw Error(problem.text);
  impl->index = options.device >= 0 ? options.device : impl->file.device;
  impl->set_up(bytes.data(), path);
  return Plan(std::move(impl));
}

std::vector<int64_t> Plan::batches() const {
  std::vector<int64_t> found;
  for (const PlanFile::Program& program : impl_->file.programs) found.push_back(program.batch);
  return found;
}

std::vector<TensorInfo> Plan::inputs(int64_t batch) const {
  std::vector<TensorInfo> found;
  for (const PlanFile::Port& port : impl_->at(batch).inputs) found.push_back(info_of(port.name, port.type));
  return found;
}

std::vector<TensorInfo> Plan::outputs(int64_t batch) const {
  const PlanFile::Program& program = impl_->at(batch);
  std::vector<TensorInfo> found;
  for (const PlanFile::Output& output : program.outputs)
    found.push_back(info_of(output.name, program.values[output.value].type));
  return found;
}

const Device& Plan::device() const { return impl_->device; }

void Plan::run(const std::vector<Input>& inputs, const std::vector<Output>& outputs) {
  std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->run(impl_->find(inputs), inputs, outputs);
}

std::vector<TensorInfo> Plan::states() const {
  std::vector<TensorInfo> found;
  for (const PlanFile::State& state : impl_->file.states) found.push_back(info_of(state.port.name, state.port.type));
  return found;
}

void Plan::read_state(const std::string& name, Output to) const {
  std::lock_guard<std::mutex> hold(impl_->lock);
  copy(to.data, impl_->states[impl_->state(name, to.nbytes)], to.nbytes);
}

void Plan::write_state(const std::string& name, Input from) {
  std::lock_guard<std::mutex> hold(impl_->lock);
  copy(impl_->states[impl_->state(name, from.nbytes)], from.data, from.nbytes);
}

void Plan::set_profiling(bool on) {
  std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->is_profiling = on;
}

std::vector<StepTime> Plan::profile() const {
  std::lock_guard<std::mutex> hold(impl_->lock);
  std::vector<StepTime> found;
  if (!impl_->profiled) return found;
  const auto& steps = impl_->profiled->from->steps;
  for (size_t i = 0; i < steps.size(); ++i)
    found.push_back({steps[i].op, impl_->profiled->kernels[i], impl_->times[2 * i + 1] - impl_->times[2 * i]});
  return found;
}

}  // namespace mge::runtime
