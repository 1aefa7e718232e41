// Memory of devices as Python sees it.
//
// In: a backend's pools. Out: `DevicePool`, blocks, scratch for kernels that run by themselves.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_MEMORY_HPP
#define MGE_NATIVE_BIND_MEMORY_HPP

#include "descriptions.hpp"

namespace mge {
namespace {

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

  // nullptr where the pool has no more.
  std::unique_ptr<Block> block(size_t nbytes, MgeError* error) {
    void* memory = nullptr;
    if (pool_.take(nbytes, &memory, error) != MGE_OK) return nullptr;
    return std::make_unique<Block>(shared_from_this(), memory, MemoryPool::rounded(nbytes), true);
  }
  // What keeps a block: it frees it when the last array over it is gone.
  static py::capsule keep(std::unique_ptr<Block> block) {
    return py::capsule(block.release(), [](void* p) { delete static_cast<Block*>(p); });
  }
  // (block, None), or (None, (status, text)).
  py::tuple take(size_t nbytes) { return wrap(nbytes, true); }
  // The same, past the cache and the statistics: for arenas.
  py::tuple allocate(size_t nbytes) { return wrap(nbytes, false); }

 private:
  py::tuple wrap(size_t nbytes, bool is_pooled) {
    void* memory = nullptr;
    MgeError error = no_error();
    size_t size = is_pooled ? MemoryPool::rounded(nbytes) : MemoryPool::in_lines(nbytes);
    int status = is_pooled ? pool_.take(nbytes, &memory, &error) : pool_.allocate(size, &memory, &error);
    if (status != MGE_OK) return py::make_tuple(py::none(), py::make_tuple(status, std::string(error.message)));
    auto block = std::make_unique<Block>(shared_from_this(), memory, size, is_pooled);
    if (!is_host_) return py::make_tuple(py::cast(std::move(block)), py::none());
    py::array_t<uint8_t> array({size}, {1}, static_cast<uint8_t*>(memory), keep(std::move(block)));
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

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_MEMORY_HPP
