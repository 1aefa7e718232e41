// max_pool, avg_pool and their gradients, and the x86:: forms of them with the channels last.
#include "mge/cpu/halves.hpp"
#include "mge/cpu/pool_last.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

// Calls f with the type in which `max_pool` gives its positions.
template <class F>
void with_index(const Type& type, F&& f) {
  if (type.dtype == dtype_of<uint8_t>())
    f(uint8_t());
  else
    f(int32_t());
}

template <class T, bool last>
void add_max(Kernels& kernels, const std::string& op) {
  kernels.prepared<T>(op, [](const Use& use) -> Function {
    const Pool pool(use, use.inputs[0].shape, last);
    return [=](const Run& run) {
      with_index(run.use.outputs[1], [&](auto kind) {
        using I = decltype(kind);
        const auto kernel = last ? max_pool_last<T, I> : max_pool<T, I>;
        kernel(pool, run.in<T>(0), run.out<T>(0), run.outputs[1] ? run.out<I>(1) : nullptr);
      });
    };
  }).optional_outputs();
}

template <class T, bool last>
Function max_backward(const Use& use) {
  const Pool pool(use, use.integers("input_shape"), last);
  return [=](const Run& run) {
    with_index(run.use.inputs[0], [&](auto kind) {
      using I = decltype(kind);
      const auto kernel = last ? max_pool_last_backward<T, I> : max_pool_backward<T, I>;
      kernel(pool, run.in<I>(0), run.in<T>(1), run.out<T>(0));
    });
  };
}

// Its first input is the positions, so the dtype of dy decides here.
template <bool last>
void add_max_backward(Kernels& kernels, const std::string& op) {
  const auto refusal = [](const Use& use) {
    const MgeDataType dtype = use.inputs[1].dtype;
    return dtype == dtype_of<double>() || dtype == dtype_of<float>() || is_half(use.inputs[1]) ? ""
                                                                                                  : "no kernel for dy";
  };
  const auto make = [](const Use& use) -> Function {
    if (use.inputs[1].dtype == dtype_of<double>()) return max_backward<double, last>(use);
    if (use.inputs[1].dtype == dtype_of<float>()) return max_backward<float, last>(use);
    return from_wide(use, Kernel{use.name, {}, max_backward<float, last>, {}, {}, {}, {}, {}});
  };
  for_types<uint8_t, int32_t>([&](auto tag) {
    kernels.prepared<typename decltype(tag)::type>(op, make).unless(refusal).workspace(half_bytes);
  });
}

template <class T, bool last>
void add_avg(Kernels& kernels, const std::string& op) {
  kernels.prepared<T>(op, [](const Use& use) -> Function {
    const Pool pool(use, use.inputs[0].shape, last);
    const bool count_padding = use.flag("count_padding");
    return [=](const Run& run) {
      (last ? avg_pool_last<T> : avg_pool<T>)(pool, run.in<T>(0), run.out<T>(0), count_padding);
    };
  });
  kernels.prepared<T>(op + "_backward", [](const Use& use) -> Function {
    const Pool pool(use, use.integers("input_shape"), last);
    const bool count_padding = use.flag("count_padding");
    return [=](const Run& run) {
      (last ? avg_pool_last_backward<T> : avg_pool_backward<T>)(pool, run.in<T>(0), run.out<T>(0), count_padding);
    };
  });
}

}  // namespace

void add_pool(Kernels& kernels) {
  for_types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float, double>([&](auto tag) {
    add_max<typename decltype(tag)::type, false>(kernels, "max_pool");
  });
  for_types<float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    add_max<T, true>(kernels, "x86::max_pool");
    add_avg<T, false>(kernels, "avg_pool");
    add_avg<T, true>(kernels, "x86::avg_pool");
  });
  add_max_backward<false>(kernels, "max_pool_backward");
  add_max_backward<true>(kernels, "x86::max_pool_backward");
  also_halves(kernels, {"max_pool", "avg_pool", "avg_pool_backward", "x86::max_pool", "x86::avg_pool",
                        "x86::avg_pool_backward"});
}
