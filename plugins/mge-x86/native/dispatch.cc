// The library that the core loads: it finds what this processor can do, and loads the kernels of that level.
//
// In: cpuid, and MGE_X86_ISA (a level's name, for tests). Out: the table of libmge_x86_<level>.so beside this library.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "mge/plugin.h"

namespace {

struct Level {
  const char* name;
  bool (*works)();
};

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}

// The best first.
const Level LEVELS[] = {
    {"avx512vnni",
     [] {
       return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
     }},
    {"avx512", has_avx512},
    {"avx2", has_avx2},
    {"sse4", [] { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"); }},
};

// The best level, or the one that `wanted` names; "" with `why` where there is none.
std::string choose(const char* wanted, std::string* why) {
  std::string usable;
  for (const Level& level : LEVELS) {
    if (!level.works()) continue;
    if (!wanted || !*wanted || level.name == std::string(wanted)) return level.name;
    usable += std::string(usable.empty() ? "" : ", ") + level.name;
  }
  *why = usable.empty() ? "this processor lacks SSE4.2, which mge-x86 needs"
                        : "MGE_X86_ISA=" + std::string(wanted) + ": this processor has the levels " + usable;
  return "";
}

}  // namespace

extern "C" MGE_EXPORT const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error) {
  __builtin_cpu_init();
  std::string why, level = choose(std::getenv("MGE_X86_ISA"), &why);
  if (level.empty()) return mge_fail(error, MGE_UNSUPPORTED, why.c_str()), nullptr;
  Dl_info self;
  if (!dladdr(reinterpret_cast<const void*>(&MGE_ENTRY), &self))
    return mge_fail(error, MGE_FAILED, "mge-x86 cannot tell where its library is"), nullptr;
  std::string path = self.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libmge_x86_" + level + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* entry = library ? dlsym(library, MGE_ENTRY_PREFIX "1") : nullptr;
  if (!entry) return mge_fail(error, MGE_FAILED, dlerror()), nullptr;
  return reinterpret_cast<MgeEntry>(entry)(host, error);
}
