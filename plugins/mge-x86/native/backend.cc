// One level's library: the registry of all kernels. The build names the families in MGE_X86_FAMILIES.
#include "mge/kernel.hpp"

#define FAMILY(name) void add_##name(mge::Kernels&);
MGE_X86_FAMILIES
#undef FAMILY

MGE_BACKEND("x86", "the mge project", MGE_X86_VERSION, 200) {
  kernels.describe("x86-64, " MGE_X86_LEVEL, "{\"isa\": \"" MGE_X86_LEVEL "\"}");
#define FAMILY(name) add_##name(kernels);
  MGE_X86_FAMILIES
}
