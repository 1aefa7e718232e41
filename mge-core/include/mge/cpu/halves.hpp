// mge/cpu/halves.hpp: float16 and bfloat16 for kernels that compute float32.
//
// In: the names of ops that have float32 kernels. Out: kernels for the 16-bit dtypes: inputs are converted into the
// workspace, the float32 kernel runs, its results are rounded.
#ifndef MGE_CPU_HALVES_HPP
#define MGE_CPU_HALVES_HPP

#include <string>
#include <vector>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

inline bool is_half(const Type& type) {
  return type.dtype == dtype_of<float16>() || type.dtype == dtype_of<bfloat16>();
}

// The same use with float32 for each 16-bit float.
inline Use widened(Use use) {
  for (auto* types : {&use.inputs, &use.outputs})
    for (Type& type : *types)
      if (is_half(type)) type.dtype = dtype_of<float>();
  return use;
}

template <class From, class To>
void convert(const From* from, To* to, int64_t n) {
  parallel_for(n, 1 << 16, [=](int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + kWidth <= end; i += kWidth) store(to + i, load(from + i));
    for (; i < end; ++i) to[i] = from_float<To>(to_float(from[i]));
  });
}

// Calls f with `data` as a pointer to the 16-bit float dtype of `type`.
template <class F>
void with_half(const Type& type, void* data, F&& f) {
  if (type.dtype == dtype_of<float16>())
    f(static_cast<float16*>(data));
  else
    f(static_cast<bfloat16*>(data));
}

inline uint64_t padded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

inline uint64_t half_bytes(const Use& use) {
  uint64_t total = 0;
  for (auto* types : {&use.inputs, &use.outputs})
    for (const Type& type : *types)
      if (is_half(type)) total += padded(4 * static_cast<uint64_t>(type.size()));
  return total;
}

// Makes the kernel of a use with 16-bit floats from that of the widened use.
inline Function from_wide(const Use& use, const Kernel& kernel) {
  const Use wide = widened(use);
  return [wide, inner = kernel.make(wide)](const Run& run) {
    char* free = static_cast<char*>(run.workspace);
    std::vector<MgeTensor> made(wide.inputs.size() + wide.outputs.size());
    std::vector<const MgeTensor*> inputs;
    std::vector<MgeTensor*> outputs;
    for (size_t i = 0; i < made.size(); ++i) {
      const bool given = i < wide.inputs.size();
      const size_t at = given ? i : i - wide.inputs.size();
      const Type& type = given ? run.use.inputs[at] : run.use.outputs[at];
      made[i] = given ? *run.inputs[at] : *run.outputs[at];
      if (is_half(type)) {
        made[i].data = free, made[i].dtype = dtype_of<float>();
        free += padded(4 * static_cast<uint64_t>(type.size()));
        if (given)
          with_half(type, run.inputs[at]->data,
                    [&](auto* half) { convert(half, static_cast<float*>(made[i].data), type.size()); });
      }
      if (given)
        inputs.push_back(&made[i]);
      else
        outputs.push_back(&made[i]);
    }
    inner(Run{wide, inputs.data(), outputs.data(), free});
    for (size_t i = 0; i < outputs.size(); ++i)
      if (is_half(run.use.outputs[i]))
        with_half(run.use.outputs[i], run.outputs[i]->data, [&](auto* half) {
          convert(static_cast<const float*>(outputs[i]->data), half, run.use.outputs[i].size());
        });
  };
}

// Adds kernels for float16 and bfloat16. `kernels` lives as long as what it makes.
inline void also_halves(Kernels& kernels, const std::vector<std::string>& ops) {
  const Kernels* all = &kernels;
  for (const std::string& op : ops)
    for_types<float16, bfloat16>([&](auto tag) {
      using T = typename decltype(tag)::type;
      kernels
          .prepared<T>(op,
                       [all](const Use& use) {
                         std::string why;
                         return from_wide(use, *all->find(widened(use), &why));
                       })
          .unless([all](const Use& use) {
            std::string why;
            return all->find(widened(use), &why) ? "" : why;
          })
          .inplace_of([all](const Use& use) {
            std::string why;
            const Use wide = widened(use);
            return all->find(wide, &why)->pairs_for(wide);
          })
          .workspace([all](const Use& use) {
            std::string why;
            const Use wide = widened(use);
            const Kernel* kernel = all->find(wide, &why);
            return half_bytes(use) + (kernel->workspace_bytes ? kernel->workspace_bytes(wide) : 0);
          });
    });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_HALVES_HPP
