// mge/kernel.hpp: help for backends written in C++17, over plugin.h. Header only; no mge library.
//
// In: kernels, registered by op name and dtype in the body of MGE_BACKEND. Out: the exported table of
// a backend whose device is the host's processor and memory. A backend with memory or streams of its
// own fills an MgeBackend itself; Use, Run and guarded help there too.
//
//   MGE_BACKEND("acme", "Acme Ltd.", "1.0") {
//     kernels.add<float>("neg", [](const mge::Run& run) {
//       const float* x = run.in<float>(0);
//       float* y = run.out<float>(0);
//       for (int64_t i = 0, n = run.use.outputs[0].size(); i < n; ++i) y[i] = -x[i];
//     });
//   }
//
// A kernel may throw: the exception becomes the error of that step, and never leaves the library.
#ifndef MGE_KERNEL_HPP
#define MGE_KERNEL_HPP

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "mge/plugin.h"

namespace mge {

// ---- Dtypes ----

// Elements of the 16-bit float dtypes, as they lie in memory; mge/cpu/vec.hpp converts them.
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

template <class T>
constexpr MgeDataType dtype_of() {
  constexpr bool bfloat = std::is_same<T, bfloat16>::value, half = std::is_same<T, float16>::value;
  static_assert(std::is_arithmetic<T>::value || bfloat || half, "T is no dtype");
  return {static_cast<uint8_t>(bfloat                                     ? MGE_BFLOAT
                               : std::is_same<T, bool>::value             ? MGE_BOOL
                               : std::is_floating_point<T>::value || half ? MGE_FLOAT
                               : std::is_signed<T>::value                 ? MGE_INT
                                                                          : MGE_UINT),
          static_cast<uint8_t>(8 * sizeof(T)), 1};
}

template <class T>
struct Tag {
  using type = T;
};

// Calls f(Tag<T>()) for each T:
//   for_types<float, double>([&](auto tag) { using T = typename decltype(tag)::type; ... });
template <class... Ts, class F>
void for_types(F&& f) {
  (f(Tag<Ts>()), ...);
}

inline bool operator==(MgeDataType x, MgeDataType y) {
  return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes;
}

// ---- One use of an op ----

struct Type {
  MgeDataType dtype;
  std::vector<int64_t> shape;

  int64_t size() const {
    int64_t count = 1;
    for (int64_t n : shape) count *= n;
    return count;
  }
};

// A copy of an MgeOp that a kernel can keep, but for strings, bytes and graphs.
class Use {
 public:
  explicit Use(const MgeOp& op) : name(op.name), flags(MGE_COVERS(&op, flags) ? op.flags : 0) {
    for (uint32_t i = 0; i < op.input_count; ++i) inputs.push_back(type_of(op.inputs[i]));
    for (uint32_t i = 0; i < op.output_count; ++i) outputs.push_back(type_of(op.outputs[i]));
    for (uint32_t i = 0; i < op.attr_count; ++i) {
      const MgeAttr& attr = op.attrs[i];
      if (attr.kind == MGE_ATTR_NONE) continue;
      Attr& mine = attrs_[attr.name];
      if (attr.kind == MGE_ATTR_INT || attr.kind == MGE_ATTR_BOOL) {
        mine.integers = {attr.value.i};
        mine.number = static_cast<double>(attr.value.i);  // 1 is as good as 1.0
      }
      if (attr.kind == MGE_ATTR_INTS || attr.kind == MGE_ATTR_BOOLS)
        mine.integers.assign(attr.value.ints, attr.value.ints + attr.count);
      if (attr.kind == MGE_ATTR_FLOAT) mine.number = attr.value.f;
      if (attr.kind == MGE_ATTR_STRING) mine.text = attr.value.s;
    }
  }

  // An attribute; `otherwise` where the op has none of that name (or it is None).
  int64_t integer(const char* attr, int64_t otherwise) const {
    const Attr* found = find(attr);
    return found && !found->integers.empty() ? found->integers[0] : otherwise;
  }
  bool has(const char* attr) const { return find(attr); }
  bool flag(const char* attr) const { return integer(attr, 0) != 0; }
  double number(const char* attr, double otherwise) const {
    const Attr* found = find(attr);
    return found ? found->number : otherwise;
  }
  std::string text(const char* attr) const { return find(attr) ? find(attr)->text : ""; }
  std::vector<int64_t> integers(const char* attr) const {
    return find(attr) ? find(attr)->integers : std::vector<int64_t>();
  }

  const std::string name;
  const uint32_t flags;  // MgeOpFlags
  std::vector<Type> inputs, outputs;

 private:
  struct Attr {
    std::vector<int64_t> integers;
    double number = 0;
    std::string text;
  };

  static Type type_of(const MgeTensorType& type) {
    return {type.dtype, std::vector<int64_t>(type.shape, type.shape + type.ndim)};
  }
  const Attr* find(const char* attr) const {
    auto found = attrs_.find(attr);
    return found == attrs_.end() ? nullptr : &found->second;
  }

  std::map<std::string, Attr> attrs_;
};

// One run of a kernel.
struct Run {
  const Use& use;
  const MgeTensor* const* inputs;
  MgeTensor* const* outputs;
  void* workspace;

  template <class T>
  const T* in(size_t i) const {
    return static_cast<const T*>(inputs[i]->data);
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(outputs[i]->data);
  }
};

// Thrown by a kernel to give its step another status than MGE_FAILED.
struct Failure : std::runtime_error {
  Failure(MgeStatus code, const std::string& message) : std::runtime_error(message), code(code) {}
  const MgeStatus code;
};

// Calls `body` and turns what it throws into a status.
template <class Body>
int guarded(MgeError* error, Body&& body) noexcept {
  try {
    body();
    return MGE_OK;
  } catch (const Failure& failure) {
    return mge_fail(error, failure.code, failure.what());
  } catch (const std::bad_alloc&) {
    return mge_fail(error, MGE_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& exception) {
    return mge_fail(error, MGE_FAILED, exception.what());
  } catch (...) {
    return mge_fail(error, MGE_FAILED, "an exception that is no std::exception");
  }
}

// Calls body(begin, end) for chunks of `grain` items on the host's threads; or body(begin, end, worker), where
// `worker` finds scratch memory (MgeBody). What a chunk throws, the caller of parallel_for throws, after all chunks.
template <class Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  constexpr bool kAsksWorker = std::is_invocable_v<Body&, int64_t, int64_t, int32_t>;
  static constexpr auto call = [](Body& called, int64_t begin, int64_t end, [[maybe_unused]] int32_t worker) {
    if constexpr (kAsksWorker)
      called(begin, end, worker);
    else
      called(begin, end);
  };
  if (count <= grain) {  // one chunk: here
    if (count > 0) call(body, 0, count, 0);
    return;
  }
  struct Shared {
    Body* body;
    std::mutex lock;
    std::exception_ptr thrown;
  } shared{&body, {}, nullptr};
  auto chunk = [](int64_t begin, int64_t end, int32_t worker, void* data) {
    Shared& mine = *static_cast<Shared*>(data);
    try {
      call(*mine.body, begin, end, worker);
    } catch (...) {
      std::lock_guard<std::mutex> hold(mine.lock);
      if (!mine.thrown) mine.thrown = std::current_exception();
    }
  };
  mge_host->parallel_for(count, grain, chunk, &shared);
  if (shared.thrown) std::rethrow_exception(shared.thrown);
}

// ---- The registry of a backend on the host's processor ----

using Function = std::function<void(const Run&)>;
using Maker = std::function<Function(const Use&)>;            // called once, by prepare
using Refusal = std::function<std::string(const Use&)>;       // "" where it takes the use
using Workspace = std::function<uint64_t(const Use&)>;        // bytes
using Pairs = std::function<std::vector<MgeInplacePair>(const Use&)>;
using Title = std::function<std::string(const Use&)>;         // what profiles call it

struct Kernel {
  std::string op;
  MgeDataType dtype;  // of the first input; of the first output where there is no input
  Maker make;
  Refusal refusal;
  Workspace workspace_bytes;
  Title title;
  std::vector<MgeInplacePair> pairs;
  Pairs pairs_of_use;
  uint32_t flags = 0;  // MgeKernelFlags

  // The kernel takes only uses for which `reason` returns "".
  Kernel& unless(Refusal reason) { return refusal = std::move(reason), *this; }
  Kernel& workspace(Workspace bytes) { return workspace_bytes = std::move(bytes), *this; }
  // By default the op's name; an algorithm that `make` chooses belongs into it, as "conv winograd4".
  Kernel& named(Title name) { return title = std::move(name), *this; }
  // Where nobody needs an output, its place in Run::outputs is NULL.
  Kernel& optional_outputs() { return flags |= MGE_KERNEL_OPTIONAL_OUT, *this; }
  // The output may be written over that input. Of several inputs, the plan takes the first that nothing reads later.
  Kernel& inplace(uint32_t input, uint32_t output = 0) { return pairs.push_back({input, output}), *this; }
  // The same where the pairs depend on the use.
  Kernel& inplace_of(Pairs of_use) { return pairs_of_use = std::move(of_use), *this; }
  std::vector<MgeInplacePair> pairs_for(const Use& use) const { return pairs_of_use ? pairs_of_use(use) : pairs; }
};

class Kernels {
 public:
  // What the device is called, and a JSON object that says what it can.
  void describe(const std::string& name, const std::string& capabilities) {
    device = name, this->capabilities = capabilities;
  }
  std::string device = "host processor", capabilities;

  // Registers a kernel of an op, for uses whose first input (of ops without inputs: first output) is of dtype T.
  template <class T>
  Kernel& add(const std::string& op, Function run) {
    return prepared<T>(op, [run](const Use&) { return run; });
  }
  // The same for a function that is made for each use, with what it computed beforehand.
  template <class T>
  Kernel& prepared(const std::string& op, Maker make) {
    return prepared(op, dtype_of<T>(), std::move(make));
  }
  Kernel& prepared(const std::string& op, MgeDataType dtype, Maker make) {
    return all_.emplace(op, Kernel{op, dtype, std::move(make), {}, {}, {}, {}, {}})->second;
  }

  // The first kernel that takes a use, else nullptr and why each refused.
  const Kernel* find(const Use& use, std::string* reason) const {
    auto range = all_.equal_range(use.name);
    if (range.first == range.second) *reason = "no kernel";
    for (auto at = range.first; at != range.second; ++at) {
      const Kernel& kernel = at->second;
      std::string why;
      if (!((use.inputs.empty() ? use.outputs : use.inputs)[0].dtype == kernel.dtype))
        why = "no kernel for this dtype";
      else if (kernel.refusal)
        why = kernel.refusal(use);
      if (why.empty()) return &kernel;
      if (reason->find(why) == std::string::npos) *reason += (reason->empty() ? "" : "; ") + why;
    }
    return nullptr;
  }

 private:
  std::multimap<std::string, Kernel> all_;
};

// The functions of the table. `Self::kernels()` holds the registry.
template <class Self>
struct HostBackend {
  struct Prepared {
    Use use;
    Function run;
    std::string name;
    std::vector<MgeInplacePair> pairs;
  };

  static int32_t device_count() { return 1; }
  static int device_info(int32_t, MgeDeviceInfo* info, MgeError* error) {
    return guarded(error, [&] {
      const Kernels& mine = Self::kernels();
      info->flags = MGE_DEVICE_HOST_MEMORY;
      snprintf(info->name, sizeof info->name, "%s", mine.device.c_str());
      if (!mine.capabilities.empty()) info->capabilities = mine.capabilities.c_str();
    });
  }
  static int mem_alloc(int32_t, size_t nbytes, size_t alignment, void*, void** out, MgeError* error) {
    constexpr size_t kHugePage = size_t{2} << 20;
    if (nbytes >= 2 * kHugePage) alignment = std::max(alignment, kHugePage);
    size_t size = (nbytes + alignment - 1) / alignment * alignment;
    *out = size >= nbytes ? std::aligned_alloc(alignment, size ? size : alignment) : nullptr;
#if defined(MADV_HUGEPAGE)
    if (*out && alignment == kHugePage) madvise(*out, size, MADV_HUGEPAGE);  // less time for finding pages
#endif
    return *out ? MGE_OK : mge_fail(error, MGE_OUT_OF_MEMORY, "no such block of host memory");
  }
  static void mem_free(int32_t, void* memory, size_t, void*) { std::free(memory); }
  static int mem_copy(int32_t, void* to, const void* from, size_t n, MgeCopyKind, void*, MgeError*) {
    if (n) std::memcpy(to, from, n);
    return MGE_OK;
  }
  static int supports(int32_t, const MgeOp* op, char* reason, size_t capacity) {
    MgeError error{sizeof(MgeError), 0, ""};
    std::string why;
    bool good = false;
    if (guarded(&error, [&] { good = Self::kernels().find(Use(*op), &why); })) why = error.message;
    if (!good) snprintf(reason, capacity, "%s", why.c_str());
    return good;
  }
  static int prepare(int32_t, const MgeOp* op, void** kernel, MgeKernelInfo* info, MgeError* error) {
    return guarded(error, [&] {
      Use use(*op);
      std::string why;
      const Kernel* found = Self::kernels().find(use, &why);
      if (!found) throw Failure(MGE_UNSUPPORTED, why);
      Function run = found->make(use);
      if (found->workspace_bytes) info->workspace_bytes = found->workspace_bytes(use);
      std::string name = found->title ? found->title(use) : found->op;
      std::vector<MgeInplacePair> pairs = found->pairs_for(use);
      auto* made = new Prepared{std::move(use), std::move(run), std::move(name), std::move(pairs)};
      info->flags = found->flags;
      info->name = made->name.c_str();
      info->inplace = made->pairs.data();
      info->inplace_count = static_cast<uint32_t>(made->pairs.size());
      *kernel = made;
    });
  }
  static int run(void* kernel, void*, const MgeTensor* const* inputs, MgeTensor* const* outputs,
                 void* workspace, MgeError* error) {
    Prepared& mine = *static_cast<Prepared*>(kernel);
    return guarded(error, [&] { mine.run(Run{mine.use, inputs, outputs, workspace}); });
  }
  static void release(void* kernel) { delete static_cast<Prepared*>(kernel); }

  static MgeBackend table(const char* name, const char* vendor, const char* version,
                          int32_t priority = -1) {
    MgeBackend made{};
    const uint32_t versions[] = {MGE_BACKEND_VERSION};
    made.struct_size = versions[0], made.abi_major = versions[1], made.abi_minor = versions[2];
    made.min_host_minor = versions[3];
    made.name = name, made.vendor = vendor, made.version = version, made.priority = priority;
    made.device_count = device_count, made.device_info = device_info;
    made.mem_alloc = mem_alloc, made.mem_free = mem_free, made.mem_copy = mem_copy;
    made.supports = supports, made.prepare = prepare, made.run = run, made.release = release;
    return made;
  }
};

}  // namespace mge

// MGE_BACKEND(name, vendor, version[, priority]), once in the library, followed by a body that registers
// its kernels in `kernels` (an mge::Kernels). Without a priority the device runs only what names it.
#define MGE_BACKEND(name, vendor, ...)                                                            \
  static void mge_register_kernels(mge::Kernels& kernels);                                        \
  namespace {                                                                                     \
  struct MgeThisBackend : mge::HostBackend<MgeThisBackend> {                                      \
    static const mge::Kernels& kernels() {                                                        \
      static const mge::Kernels* all = [] {                                                       \
        auto* made = new mge::Kernels; /* never deleted: kernels live as long as the process */   \
        mge_register_kernels(*made);                                                              \
        return made;                                                                              \
      }();                                                                                        \
      return *all;                                                                                \
    }                                                                                             \
  };                                                                                              \
  const MgeBackend mge_this_backend = MgeThisBackend::table(name, vendor, __VA_ARGS__);           \
  }                                                                                               \
  MGE_DEFINE_BACKEND(mge_this_backend)                                                            \
  static void mge_register_kernels(mge::Kernels& kernels)

#endif  // MGE_KERNEL_HPP
