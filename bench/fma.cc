// Prints the fused multiply-adds of one core in GFLOP/s: the roof of products and convolutions. For gemm.py.
#include <cstdio>
#include <ctime>

#include "mge/cpu/tile.hpp"

using namespace mge::cpu;

static double seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int main() {
  constexpr int kSums = 12, kTurns = 500000;  // as many sums as hide the latency of both units
  double most = 0;
  for (int round = 0; round < 40; ++round) {
    vf sums[kSums];
    MGE_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = splat(0.1f * static_cast<float>(i));
    vf x = splat(0.999f), y = splat(1e-9f);
    double start = seconds();
    for (int turn = 0; turn < kTurns; ++turn)
      MGE_UNROLL
      for (int i = 0; i < kSums; ++i) accumulate(sums[i], x, y);
    double taken = seconds() - start;
    float total = 0;
    MGE_UNROLL
    for (int i = 0; i < kSums; ++i) total += sums[i][0];
    volatile float used = total;
    (void)used;
    double rate = 2.0 * kSums * kWidth * kTurns / taken / 1e9;
    most = rate > most ? rate : most;
  }
  std::printf("%.1f\n", most);
}
