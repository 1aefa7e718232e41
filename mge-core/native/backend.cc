#include "backend.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "thread_pool.hpp"
#include "tuning_cache.hpp"

namespace mge {
namespace {

constexpr uint32_t NEWEST_SOUGHT = 9;  // major versions that are looked for, to say what a library is

void log_to_stderr(int level, const char* plugin, const char* message) {
  if (level < 2) fprintf(stderr, "mge: %s: %s\n", plugin, message);
}

std::atomic<LogSink> log_sink{log_to_stderr};

void host_log(int level, const char* plugin, const char* message) { log_sink.load()(level, plugin, message); }

int host_tuning_get(const char* key, void* value, size_t* nbytes) {
  std::string found;
  if (!TuningCache::instance().get(key, &found)) return 0;
  memcpy(value, found.data(), std::min(*nbytes, found.size()));
  *nbytes = found.size();
  return 1;
}

void host_tuning_put(const char* key, const void* value, size_t nbytes) {
  TuningCache::instance().put(key, std::string(static_cast<const char*>(value), nbytes));
}

std::string& core_version() {
  static std::string* version = new std::string("0");
  return *version;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string version_text(uint32_t major, uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string built_for(const std::string& path, uint32_t major, uint32_t minor) {
  return file_name(path) + " was built for plugin ABI " + version_text(major, minor) +
         " or newer; this mge-core offers " + version_text(MGE_ABI_MAJOR, MGE_ABI_MINOR) + ".";
}

// What is wrong with a table, or "".
std::string fault_of(const MgeBackend& table) {
  if (!table.name || !*table.name) return "the table has no name";
  const void* const required[] = {
      reinterpret_cast<const void*>(table.device_count), reinterpret_cast<const void*>(table.device_info),
      reinterpret_cast<const void*>(table.mem_alloc),    reinterpret_cast<const void*>(table.mem_free),
      reinterpret_cast<const void*>(table.mem_copy),     reinterpret_cast<const void*>(table.supports),
      reinterpret_cast<const void*>(table.prepare),      reinterpret_cast<const void*>(table.run),
      reinterpret_cast<const void*>(table.release)};
  const char* const names[] = {"device_count", "device_info", "mem_alloc", "mem_free", "mem_copy",
                               "supports",     "prepare",     "run",       "release"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (!required[i]) return std::string("the table has no ") + names[i];
  const bool streams[] = {!!table.stream_create, !!table.stream_destroy, !!table.stream_sync, !!table.event_create,
                          !!table.event_destroy, !!table.event_record,   !!table.event_wait,  !!table.event_sync};
  const bool graphs[] = {!!table.compile, !!table.execute, !!table.destroy};
  auto mixed = [](const bool* from, size_t count) {
    auto there = std::count(from, from + count, true);
    return there != 0 && there != static_cast<long>(count);
  };
  if (mixed(streams, 8)) return "the table has some entries for streams and events, and not all eight";
  if (mixed(graphs, 3)) return "the table has some of compile, execute and destroy, and not all three";
  return "";
}

}  // namespace

MgeError no_error() {
  MgeError error;
  error.struct_size = sizeof error;
  error.code = MGE_OK;
  error.message[0] = 0;
  return error;
}

void set_log_sink(LogSink sink) { log_sink.store(sink ? sink : log_to_stderr); }

void set_core_version(const std::string& version) { core_version() = version; }

const MgeHost* host_table() {
  static MgeHost table = [] {
    MgeHost made{};
    made.struct_size = sizeof made;
    made.abi_major = MGE_ABI_MAJOR;
    made.abi_minor = MGE_ABI_MINOR;
    made.thread_count = mge::thread_count();
    made.core_version = core_version().c_str();
    made.log = host_log;
    made.parallel_for = mge::parallel_for;
    made.tuning_get = host_tuning_get;
    made.tuning_put = host_tuning_put;
    return made;
  }();
  return &table;
}

const Backend* Backend::load(const std::string& path, LoadProblem* problem) {
  static std::mutex* lock = new std::mutex;
  static auto* loaded = new std::map<const MgeBackend*, const Backend*>;
  std::lock_guard<std::mutex> hold(*lock);
  auto fail = [&](LoadProblem::Kind kind, const std::string& text) {
    *problem = {kind, text};
    return nullptr;
  };
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    return fail(LoadProblem::NOT_LOADED, reason ? reason : "dlopen failed");
  }
  std::string symbol = MGE_ENTRY_PREFIX + std::to_string(MGE_ABI_MAJOR);
  auto entry = reinterpret_cast<MgeEntry>(dlsym(library, symbol.c_str()));
  if (!entry) {
    for (uint32_t major = 0; major <= NEWEST_SOUGHT; ++major)
      if (dlsym(library, (MGE_ENTRY_PREFIX + std::to_string(major)).c_str()))
        return fail(LoadProblem::INCOMPATIBLE, built_for(path, major, 0));
    return fail(LoadProblem::CONTRACT, file_name(path) + " does not export " + symbol + "; it is no mge backend");
  }
  MgeError error = no_error();
  const MgeBackend* given = entry(host_table(), &error);
  error.message[sizeof error.message - 1] = 0;
  if (!given) {
    if (error.code == MGE_UNSUPPORTED) return fail(LoadProblem::INCOMPATIBLE, file_name(path) + ": " + error.message);
    std::string why = error.message[0] ? error.message : "its entry function gave no table and no reason";
    return fail(LoadProblem::NOT_LOADED, file_name(path) + ": " + why);
  }
  auto known = loaded->find(given);
  if (known != loaded->end()) return known->second;
  if (!MGE_COVERS(given, min_host_minor))
    return fail(LoadProblem::CONTRACT, file_name(path) + ": struct_size of its table is " +
                                           std::to_string(given->struct_size) + " bytes");
  if (given->abi_major != MGE_ABI_MAJOR)
    return fail(LoadProblem::INCOMPATIBLE, built_for(path, given->abi_major, given->abi_minor));
  if (given->min_host_minor > MGE_ABI_MINOR)
    return fail(LoadProblem::INCOMPATIBLE, built_for(path, given->abi_major, given->min_host_minor));
  MgeBackend table{};
  memcpy(&table, given, std::min<size_t>(given->struct_size, sizeof table));
  std::string fault = fault_of(table);
  if (!fault.empty()) return fail(LoadProblem::CONTRACT, file_name(path) + ": " + fault);
  return (*loaded)[given] = new Backend(path, table);
}

MgeDevice Backend::dlpack_device(int32_t device) const {
  MgeDeviceInfo info{};
  info.struct_size = sizeof info;
  MgeError error = no_error();
  if (table_.device_info(device, &info, &error) != MGE_OK || info.flags & MGE_DEVICE_HOST_MEMORY) return {1, 0};
  return {info.dlpack_type ? info.dlpack_type : 12, device};
}

int DeviceMemory::allocate(size_t nbytes, void** out, MgeError* error) {
  return backend_.table().mem_alloc(device_, nbytes, ALIGNMENT, nullptr, out, error);
}

void DeviceMemory::free(void* memory, size_t nbytes) { backend_.table().mem_free(device_, memory, nbytes, nullptr); }

Kernel::Kernel(const Backend& backend, int32_t device, void* handle, Function function, void (*release)(void*),
               const MgeKernelInfo& info)
    : backend_(backend), device_(device), handle_(handle), function_(function), release_(release),
      workspace_bytes_(info.workspace_bytes), flags_(info.flags), name_(info.name ? info.name : ""),
      inplace_(info.inplace, info.inplace + (info.inplace ? info.inplace_count : 0)) {}

Kernel::~Kernel() { release_(handle_); }

std::shared_ptr<Kernel> Kernel::prepare(const Backend& backend, int32_t device, const MgeOp& op, MgeError* error) {
  void* handle = nullptr;
  MgeKernelInfo info{};
  info.struct_size = sizeof info;
  const MgeBackend& table = backend.table();
  if ((error->code = table.prepare(device, &op, &handle, &info, error)) != MGE_OK) return nullptr;
  return std::shared_ptr<Kernel>(new Kernel(backend, device, handle, table.run, table.release, info));
}

std::shared_ptr<Kernel> Kernel::compile(const Backend& backend, int32_t device, const MgeGraph& graph,
                                        MgeError* error) {
  const MgeBackend& table = backend.table();
  if (!table.compile) {
    mge_fail(error, MGE_UNSUPPORTED, "the backend takes no graphs");
    return nullptr;
  }
  void* handle = nullptr;
  MgeKernelInfo info{};
  info.struct_size = sizeof info;
  if ((error->code = table.compile(device, &graph, &handle, &info, error)) != MGE_OK) return nullptr;
  return std::shared_ptr<Kernel>(new Kernel(backend, device, handle, table.execute, table.destroy, info));
}

}  // namespace mge
