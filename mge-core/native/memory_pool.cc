#include "memory_pool.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace mge {

size_t MemoryPool::in_lines(size_t nbytes) {
  size_t lines = nbytes / ALIGNMENT + (nbytes % ALIGNMENT != 0);
  return (lines ? lines : 1) * ALIGNMENT;
}

size_t MemoryPool::rounded(size_t nbytes) {
  size_t lines = in_lines(nbytes) / ALIGNMENT;
  int bits = 0;
  for (size_t rest = lines; rest; rest >>= 1) ++bits;
  size_t step = bits > 4 ? size_t{1} << (bits - 4) : 1;
  return (lines + step - 1) / step * step * ALIGNMENT;
}

int MemoryPool::take(size_t nbytes, void** out, MgeError* error) {
  size_t size = rounded(nbytes);
  std::lock_guard<std::mutex> hold(lock_);
  if (size < nbytes || (limit_ && now_.in_use_bytes + size > limit_)) {
    snprintf(error->message, sizeof error->message,
             "%zu bytes were asked for; %" PRIu64 " are in use and the limit is %" PRIu64, nbytes,
             now_.in_use_bytes, limit_);
    return error->code = MGE_OUT_OF_MEMORY;
  }
  auto waiting = free_.find(size);
  if (waiting != free_.end() && !waiting->second.empty()) {
    *out = waiting->second.back();
    waiting->second.pop_back();
    now_.cached_bytes -= size;
    ++now_.cache_hits;
  } else {
    int status = allocate_locked(size, nbytes, out, error);
    if (status != MGE_OK) return status;
    ++now_.allocations;
  }
  now_.in_use_bytes += size;
  ++now_.live_blocks;
  uint64_t reserved = now_.in_use_bytes + now_.cached_bytes;
  if (now_.in_use_bytes > now_.peak_bytes) now_.peak_bytes = now_.in_use_bytes;
  if (reserved > now_.peak_reserved_bytes) now_.peak_reserved_bytes = reserved;
  return MGE_OK;
}

int MemoryPool::allocate(size_t nbytes, void** out, MgeError* error) {
  std::lock_guard<std::mutex> hold(lock_);
  return allocate_locked(nbytes, nbytes, out, error);
}

int MemoryPool::allocate_locked(size_t size, size_t asked, void** out, MgeError* error) {
  int status = raw_.allocate(size, out, error);
  if (status == MGE_OUT_OF_MEMORY && now_.cached_bytes) {
    trim_locked();
    status = raw_.allocate(size, out, error);
  }
  if (status == MGE_OK && *out == nullptr) status = mge_fail(error, MGE_FAILED, "mem_alloc gave NULL");
  if (status != MGE_OUT_OF_MEMORY) return status;
  std::string reason(error->message, strnlen(error->message, 200));
  snprintf(error->message, sizeof error->message,
           "%zu bytes were asked for, %" PRIu64 " are in use, and the device gives no more: %s", asked,
           now_.in_use_bytes, reason.c_str());
  return error->code = MGE_OUT_OF_MEMORY;
}

void MemoryPool::give(void* memory, size_t nbytes) {
  size_t size = rounded(nbytes);
  std::lock_guard<std::mutex> hold(lock_);
  now_.in_use_bytes -= size;
  --now_.live_blocks;
  if (now_.cached_bytes + size > cache_limit_) {
    raw_.free(memory, size);
    return;
  }
  free_[size].push_back(memory);
  now_.cached_bytes += size;
}

void MemoryPool::trim() {
  std::lock_guard<std::mutex> hold(lock_);
  trim_locked();
}

void MemoryPool::trim_locked() {
  for (auto& [size, blocks] : free_)
    for (void* block : blocks) raw_.free(block, size);
  free_.clear();
  now_.cached_bytes = 0;
}

void MemoryPool::set_limit(uint64_t nbytes) {
  std::lock_guard<std::mutex> hold(lock_);
  limit_ = nbytes;
}

void MemoryPool::set_cache_limit(uint64_t nbytes) {
  std::lock_guard<std::mutex> hold(lock_);
  cache_limit_ = nbytes;
}

MemoryStatistics MemoryPool::statistics() const {
  std::lock_guard<std::mutex> hold(lock_);
  return now_;
}

void MemoryPool::reset_peak() {
  std::lock_guard<std::mutex> hold(lock_);
  now_.peak_bytes = now_.in_use_bytes;
  now_.peak_reserved_bytes = now_.in_use_bytes + now_.cached_bytes;
}

}  // namespace mge
