// The one thread pool of the process: parallel_for for kernels.
//
// In: a count of items, a grain, a body. Out: the body's calls, on the pool's threads and the caller.
// Chunks are claimed by an atomic counter, so the caller never waits for a worker that did not start.
#ifndef MGE_NATIVE_THREAD_POOL_HPP
#define MGE_NATIVE_THREAD_POOL_HPP

#include <cstdint>

#include "mge/plugin.h"

namespace mge {

// How many threads a region may use, the caller's included. 0: one for each core. Rebuilds the pool if
// it differs; call it while no region runs.
void set_thread_count(int32_t count);
int32_t thread_count();

// The contract's parallel_for (plugin.h). Regions of several callers do not wait for each other: while
// one holds the workers, another runs its chunks on its own thread. After a fork the child's pool is
// built anew on first use.
void parallel_for(int64_t count, int64_t grain, MgeBody body, void* data);

}  // namespace mge

#endif
