// A vendor's library: loaded, negotiated, and checked against the contract (plugin.h).
//
// In: a path. Out: a Backend with a table in which every entry is there or NULL, and its kernels.
#ifndef MGE_NATIVE_BACKEND_HPP
#define MGE_NATIVE_BACKEND_HPP

#include <memory>
#include <string>
#include <vector>

#include "memory_pool.hpp"
#include "mge/plugin.h"

namespace mge {

// Why a library could not be used.
struct LoadProblem {
  enum Kind { NONE, NOT_LOADED, INCOMPATIBLE, CONTRACT };
  Kind kind = NONE;
  std::string text;  // one line
};

// Lives as long as the process; a library is never unloaded.
class Backend {
 public:
  // The backend of a library, or nullptr and the problem. The same file gives the same backend.
  static const Backend* load(const std::string& path, LoadProblem* problem);

  const std::string& path() const { return path_; }
  // All entries of this host's version; those that the vendor's table lacks are NULL.
  const MgeBackend& table() const { return table_; }
  bool has_streams() const { return table_.stream_create != nullptr; }
  bool has_graphs() const { return table_.compile != nullptr; }
  // What kernels see as the device of tensors in a device's memory. Any thread.
  MgeDevice dlpack_device(int32_t device) const;

 private:
  Backend(const std::string& path, const MgeBackend& table) : path_(path), table_(table) {}

  const std::string path_;
  const MgeBackend table_;
};

// The table that vendors get.
const MgeHost* host_table();
// Where `log` goes; by default to standard error. Any thread.
using LogSink = void (*)(int level, const char* plugin, const char* message);
void set_log_sink(LogSink sink);
// What `core_version` says; before the first load.
void set_core_version(const std::string& version);

// The memory of one device of a backend. `alignment` of blocks is ALIGNMENT.
class DeviceMemory : public RawMemory {
 public:
  DeviceMemory(const Backend& backend, int32_t device) : backend_(backend), device_(device) {}
  int allocate(size_t nbytes, void** out, MgeError* error) override;
  void free(void* memory, size_t nbytes) override;

 private:
  const Backend& backend_;
  const int32_t device_;
};

// A prepared kernel, or a compiled graph. Released with its last owner. Any thread.
class Kernel {
 public:
  // nullptr where prepare or compile failed; `error` says why.
  static std::shared_ptr<Kernel> prepare(const Backend& backend, int32_t device, const MgeOp& op, MgeError* error);
  static std::shared_ptr<Kernel> compile(const Backend& backend, int32_t device, const MgeGraph& graph, MgeError* error);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  int run(void* stream, const MgeTensor* const* inputs, MgeTensor* const* outputs, void* workspace,
          MgeError* error) const {
    return function_(handle_, stream, inputs, outputs, workspace, error);
  }

  const Backend& backend() const { return backend_; }
  int32_t device() const { return device_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  uint32_t flags() const { return flags_; }
  const std::string& name() const { return name_; }
  const std::vector<MgeInplacePair>& inplace() const { return inplace_; }

 private:
  using Function = int (*)(void*, void*, const MgeTensor* const*, MgeTensor* const*, void*, MgeError*);
  Kernel(const Backend& backend, int32_t device, void* handle, Function function, void (*release)(void*),
         const MgeKernelInfo& info);

  const Backend& backend_;
  const int32_t device_;
  void* const handle_;
  const Function function_;
  void (*const release_)(void*);
  const size_t workspace_bytes_;
  const uint32_t flags_;
  std::string name_;
  std::vector<MgeInplacePair> inplace_;
};

// An MgeError that holds no error.
MgeError no_error();

}  // namespace mge

#endif
