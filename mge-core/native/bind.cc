// mge._native: the native core for Python. Only this file, and its parts in bind/, include Python.h.
//
// In: descriptions as tuples and NumPy arrays, from mge/native.py. Out: backends, kernels, pools, plans; the fast paths
// of recording a call (`Recorder`) and of calling a traced function (`TracedCall`).
// Every call into a vendor's code runs without the GIL, but for the cheap questions of `supports`.
#include "bind/traced_call.hpp"

namespace mge {
namespace {

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
      .def("reset", &Plan::reset)
      .def("run", &Plan::run);

  py::class_<TracedCall>(m, "TracedCall").def("__call__", &TracedCall::call);
  m.def("traced_call", [](py::object plan, std::shared_ptr<DevicePool> pool, py::object face,
                          const std::vector<size_t>& inputs, const py::list& nodes, const py::list& extra,
                          const py::object& traced, const std::vector<size_t>& sources,
                          const std::vector<size_t>& donated, const py::list& outputs) -> std::unique_ptr<TracedCall> {
    try {
      return std::make_unique<TracedCall>(plan, pool, face, inputs, nodes, extra, traced, sources, donated, outputs);
    } catch (const Unfit&) {
      return nullptr;
    }
  });
  m.def("read_only", read_only);
  m.def("install", install);

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
    return py::make_tuple(cache.size(), cache.damaged(), cache.hash(), cache.is_foreign());
  });
}
