// mge/cpu/roof.hpp: what this machine can do at most, measured. A kernel's speed is a share of it.
//
// In: nothing. Out: float32 operations of one core, and bytes that all threads together read from memory, a second.
// For whoever looks at kernels: no kernel depends on it. Both together take about 15 ms.
// Williams, Waterman and Patterson, Roofline, Communications of the ACM 52 (4), 2009.
#ifndef MGE_CPU_ROOF_HPP
#define MGE_CPU_ROOF_HPP

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "mge/cpu/vec.hpp"
#include "mge/kernel.hpp"

namespace mge::cpu::roof {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Operations a second of the calling thread: fused multiply-adds count as two.
inline double operations() {
  constexpr int kSums = 12, kTurns = 300000, kRounds = 12;  // as many sums as hide the latency of both units
  double most = 0;
  for (int round = 0; round < kRounds; ++round) {
    vf sums[kSums];
    MGE_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = splat(0.1f * static_cast<float>(i));
    vf x = splat(0.999f), y = splat(1e-9f);
    double start = seconds();
    for (int turn = 0; turn < kTurns; ++turn)
      MGE_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = fma(sums[i], x, y);
    double taken = seconds() - start;
    float total = 0;
    MGE_UNROLL
    for (int i = 0; i < kSums; ++i) total += sums[i][0];
    volatile float used = total;
    (void)used;
    most = std::max(most, 2.0 * kSums * kWidth * kTurns / taken);
  }
  return most;
}

// Bytes a second that the host's threads read from memory.
inline double bytes() {
  constexpr size_t kBytes = size_t{1} << 26, kParts = 64, kRounds = 4;  // more than caches hold
  constexpr size_t kPart = kBytes / kParts / sizeof(float), kSums = 8;
  std::unique_ptr<void, void (*)(void*)> block(std::aligned_alloc(size_t{1} << 21, kBytes), std::free);
  if (!block) throw std::bad_alloc();
#if defined(__linux__)
  madvise(block.get(), kBytes, MADV_HUGEPAGE);
#endif
  float* data = static_cast<float*>(block.get());
  float totals[kParts];
  parallel_for(kParts, 1, [&](int64_t begin, int64_t end) {
    std::fill(data + begin * kPart, data + end * kPart, 1.0f);
  });
  double most = 0;
  for (size_t round = 0; round < kRounds; ++round) {
    double start = seconds();
    parallel_for(kParts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const float* from = data + part * kPart;
        vf sums[kSums] = {};
        for (size_t i = 0; i < kPart; i += kSums * kWidth)
          MGE_UNROLL
          for (size_t k = 0; k < kSums; ++k) sums[k] += load(from + i + k * kWidth);
        for (size_t k = 1; k < kSums; ++k) sums[0] += sums[k];
        totals[part] = sums[0][0];
      }
    });
    volatile float used = totals[round];
    (void)used;
    most = std::max(most, kBytes / (seconds() - start));
  }
  return most;
}

}  // namespace mge::cpu::roof

#endif  // MGE_CPU_ROOF_HPP
