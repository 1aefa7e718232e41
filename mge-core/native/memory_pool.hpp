// A caching allocator over a device's own: what comes back waits by size for the next request.
//
// In: a backend's mem_alloc and mem_free. Out: blocks, statistics, and an out-of-memory error of its own.
#ifndef MGE_NATIVE_MEMORY_POOL_HPP
#define MGE_NATIVE_MEMORY_POOL_HPP

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "mge/plugin.h"

namespace mge {

constexpr size_t ALIGNMENT = 64;  // bytes: one cache line, and one AVX-512 register

// Bytes from and to the device; not thread-safe by itself.
class RawMemory {
 public:
  virtual ~RawMemory() = default;
  virtual int allocate(size_t nbytes, void** out, MgeError* error) = 0;
  virtual void free(void* memory, size_t nbytes) = 0;
};

struct MemoryStatistics {
  uint64_t in_use_bytes = 0, cached_bytes = 0;  // now
  uint64_t peak_bytes = 0;                      // largest in_use_bytes since the last reset
  uint64_t peak_reserved_bytes = 0;             // the same for in_use_bytes + cached_bytes
  uint64_t live_blocks = 0, allocations = 0, cache_hits = 0;
};

// Any thread. Blocks are given back by address and the size that was asked for.
class MemoryPool {
 public:
  explicit MemoryPool(RawMemory& raw) : raw_(raw) {}
  ~MemoryPool() { trim(); }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The size of the block for a request: whole lines, in steps of at most an eighth of the size.
  static size_t rounded(size_t nbytes);

  // The size of an arena, which is no larger than its plan: whole lines.
  static size_t in_lines(size_t nbytes);

  // MGE_OUT_OF_MEMORY says what was asked for, what is in use, and the limit. Never NULL on MGE_OK.
  int take(size_t nbytes, void** out, MgeError* error);
  // When no work that uses the block is pending.
  void give(void* memory, size_t nbytes);
  // A block that is neither cached nor counted, as for an arena; `nbytes` is what `in_lines` gave. Goes back by
  // RawMemory::free. What is cached is given up for it.
  int allocate(size_t nbytes, void** out, MgeError* error);
  // Gives cached blocks back to the device.
  void trim();

  // Bytes that blocks in use may take together; 0: no limit.
  void set_limit(uint64_t nbytes);
  void set_cache_limit(uint64_t nbytes);
  MemoryStatistics statistics() const;
  void reset_peak();

 private:
  void trim_locked();
  int allocate_locked(size_t size, size_t asked, void** out, MgeError* error);

  RawMemory& raw_;
  mutable std::mutex lock_;
  std::map<size_t, std::vector<void*>> free_;
  MemoryStatistics now_;
  uint64_t limit_ = 0, cache_limit_ = uint64_t{1} << 30;
};

}  // namespace mge

#endif
