// x86::roof, which no graph holds: its result is what all threads can do a second, operations and bytes read.
#include "mge/cpu/roof.hpp"

void add_roof(mge::Kernels& kernels) {
  kernels.add<double>("x86::roof", [](const mge::Run& run) {
    double* found = run.out<double>(0);
    found[0] = mge::cpu::roof::operations() * mge_host->thread_count;
    found[1] = mge::cpu::roof::bytes();
  });
}
