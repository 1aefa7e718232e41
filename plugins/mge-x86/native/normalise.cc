// Batch norms of (n, c, ...), x86:: batch norms of (..., c), layer norms, rms_norm, moving_average.
#include "mge/cpu/halves.hpp"
#include "mge/cpu/layer_norm.hpp"
#include "mge/cpu/positions.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

template <class T>
std::string mixed(const Use& use) {
  for (const Type& type : use.inputs)
    if (!(type.dtype == dtype_of<T>())) return "inputs of several dtypes";
  return "";
}

template <class T>
const T* optional(const Run& run, size_t i) {
  return i < run.use.inputs.size() ? run.in<T>(i) : nullptr;
}

struct Channels {  // of (n, c, p); with p = 1 the channels are last
  int64_t n, c, p;
  explicit Channels(const std::vector<int64_t>& shape) : n(shape[0]), c(shape[1]), p(1) {
    for (size_t i = 2; i < shape.size(); ++i) p *= shape[i];
  }
};

template <class T>
uint64_t base_bytes(const Use& use) {
  const Channels s(use.inputs[0].shape);
  return s.p == 1 ? channels_last_bytes<T>(s.n, s.c) : 0;
}

template <class T>
void add_batch_norm(Kernels& kernels) {
  kernels
      .prepared<T>("batch_norm_train",
                   [](const Use& use) -> Function {
                     const Channels s(use.inputs[0].shape);
                     const T eps = static_cast<T>(use.number("eps", 0));
                     return [=](const Run& run) {
                       T *mean = run.out<T>(1), *var = run.out<T>(2), *space = static_cast<T*>(run.workspace);
                       const Affine<T> a{mean, var, optional<T>(run, 1), optional<T>(run, 2), eps};
                       if (s.p > 1) return batch_norm_train(run.in<T>(0), run.out<T>(0), mean, var, a, s.n, s.c, s.p);
                       column_moments(run.in<T>(0), s.n, s.c, mean, var, space);
                       apply_columns<Clamp::kNone, T>(run.in<T>(0), nullptr, run.out<T>(0), s.n, s.c, a, space);
                     };
                   })
      .unless(mixed<T>)
      .workspace(base_bytes<T>)
      .inplace(0);
  kernels
      .prepared<T>("batch_norm_infer",
                   [](const Use& use) -> Function {
                     const Channels s(use.inputs[0].shape);
                     const T eps = static_cast<T>(use.number("eps", 0));
                     return [=](const Run& run) {
                       const Affine<T> a{run.in<T>(1), run.in<T>(2), optional<T>(run, 3), optional<T>(run, 4), eps};
                       if (s.p > 1) return batch_norm_infer(run.in<T>(0), run.out<T>(0), a, s.n, s.c, s.p);
                       apply_columns<Clamp::kNone, T>(run.in<T>(0), nullptr, run.out<T>(0), s.n, s.c, a,
                                                      static_cast<T*>(run.workspace));
                     };
                   })
      .unless(mixed<T>)
      .workspace(base_bytes<T>)
      .inplace(0);
  kernels
      .prepared<T>("batch_norm_backward",
                   [](const Use& use) -> Function {
                     const Channels s(use.inputs[0].shape);
                     const T eps = static_cast<T>(use.number("eps", 0));
                     const bool weighted = use.outputs.size() > 1;
                     return [=](const Run& run) {
                       const T *x = run.in<T>(0), *dy = run.in<T>(1);
                       T *dweight = weighted ? run.out<T>(1) : nullptr, *dbias = weighted ? run.out<T>(2) : nullptr;
                       const Affine<T> a{run.in<T>(2), run.in<T>(3), optional<T>(run, 4), nullptr, eps};
                       if (s.p > 1) return batch_norm_backward(x, dy, run.out<T>(0), dweight, dbias, a, s.n, s.c, s.p);
                       channels_last_backward<Clamp::kNone, false, T>(x, dy, nullptr, run.out<T>(0), dweight, dbias,
                                                                      nullptr, s.n, s.c, a,
                                                                      static_cast<T*>(run.workspace));
                     };
                   })
      .unless(mixed<T>)
      .workspace(base_bytes<T>)
      .inplace(1)
      .inplace(0);
}

// Calls f with the clamp of an activation as a constant.
template <class F>
Function with_clamp(const Use& use, F&& f) {
  const std::string activation = use.text("activation");
  if (activation == "relu") return f(std::integral_constant<Clamp, Clamp::kRelu>());
  if (activation == "relu6") return f(std::integral_constant<Clamp, Clamp::kRelu6>());
  return f(std::integral_constant<Clamp, Clamp::kNone>());
}

template <class T>
uint64_t last_bytes(const Use& use) {
  const int64_t c = use.inputs[0].shape.back();
  return channels_last_bytes<T>(use.inputs[0].size() / std::max<int64_t>(c, 1), c);
}

void add_channels_last(Kernels& kernels) {
  using T = float;
  kernels
      .prepared<T>("x86::batch_norm_moments",
                   [](const Use& use) -> Function {
                     const int64_t c = use.outputs[0].size(), rows = use.inputs[0].size() / c;
                     return [=](const Run& run) {
                       column_moments(run.in<T>(0), rows, c, run.out<T>(0), run.out<T>(1),
                                      static_cast<T*>(run.workspace));
                     };
                   })
      .workspace(last_bytes<T>);
  kernels
      .prepared<T>("x86::batch_norm_apply",
                   [](const Use& use) {
                     const int64_t c = use.inputs[1].size(), rows = use.inputs[0].size() / c;
                     const T eps = static_cast<T>(use.number("eps", 0));
                     return with_clamp(use, [=](auto clamp) -> Function {
                       return [=](const Run& run) {
                         const Affine<T> a{run.in<T>(1), run.in<T>(2), run.in<T>(3), run.in<T>(4), eps};
                         apply_columns<clamp.value, T>(run.in<T>(0), optional<T>(run, 5), run.out<T>(0), rows, c, a,
                                                       static_cast<T*>(run.workspace));
                       };
                     });
                   })
      .workspace([](const Use& use) { return sizeof(T) * 2 * static_cast<uint64_t>(use.inputs[1].size()); })
      .inplace_of([](const Use& use) {  // each element is read before its place is written
        return use.inputs.size() > 5 ? std::vector<MgeInplacePair>{{5, 0}, {0, 0}}
                                     : std::vector<MgeInplacePair>{{0, 0}};
      });
  kernels
      .prepared<T>("x86::batch_norm_backward",
                   [](const Use& use) {
                     const int64_t c = use.inputs[2].size(), rows = use.inputs[0].size() / c;
                     const T eps = static_cast<T>(use.number("eps", 0));
                     const bool residual = use.outputs.size() > 3;
                     return with_clamp(use, [=](auto clamp) -> Function {
                       return [=](const Run& run) {
                         const Affine<T> a{run.in<T>(2), run.in<T>(3), run.in<T>(4), run.in<T>(5), eps};
                         const T* y = optional<T>(run, 6);
                         const auto kernel = y ? channels_last_backward<clamp.value, true, T>
                                               : channels_last_backward<clamp.value, false, T>;
                         kernel(run.in<T>(0), run.in<T>(1), y, run.out<T>(0), run.out<T>(1), run.out<T>(2),
                                residual ? run.out<T>(3) : nullptr, rows, c, a, static_cast<T*>(run.workspace));
                       };
                     });
                   })
      .workspace(last_bytes<T>)
      .inplace_of([](const Use& use) {  // dresidual over dy, which the second pass reads no more; dx over what is left
        return use.outputs.size() > 3 ? std::vector<MgeInplacePair>{{0, 0}, {1, 3}}
                                      : std::vector<MgeInplacePair>{{1, 0}};
      });
}

template <class T>
std::string refused_rows(const Use& use) {
  const Middle m(use.inputs[0].shape, axes_of(use));
  if (!m.whole || m.c != 1) return "the normalised axes are not the last ones";
  const size_t first = use.name == "layer_norm" ? 1 : 4;
  if (use.inputs.size() > first && !Spread(use.inputs[first].shape, use.inputs[0].shape).fits)
    return "a weight that repeats in several ways";
  return mixed<T>(use);
}

template <class T>
RowAffine<T> row_affine(const Run& run, size_t first, const Spread& spread) {
  return {optional<T>(run, first), optional<T>(run, first + 1), spread};
}

Spread spread_of(const Use& use, size_t input) {
  return use.inputs.size() > input ? Spread(use.inputs[input].shape, use.inputs[0].shape) : Spread();
}

template <class T>
void add_layer_norm(Kernels& kernels) {
  kernels
      .prepared<T>("layer_norm",
                   [](const Use& use) -> Function {
                     const Middle m(use.inputs[0].shape, axes_of(use));
                     const Spread spread = spread_of(use, 1);
                     const T eps = static_cast<T>(use.number("eps", 0));
                     return [=](const Run& run) {
                       layer_norm(run.in<T>(0), run.out<T>(0), run.out<T>(1), run.out<T>(2),
                                  row_affine<T>(run, 1, spread), eps, m.k, m.n);
                     };
                   })
      .unless(refused_rows<T>)
      .inplace(0);
  kernels
      .prepared<T>("layer_norm_backward",
                   [](const Use& use) -> Function {
                     const Middle m(use.inputs[0].shape, axes_of(use));
                     const Spread spread = spread_of(use, 4);
                     const T eps = static_cast<T>(use.number("eps", 0));
                     const bool weighted = use.outputs.size() > 1;
                     return [=](const Run& run) {
                       layer_norm_backward(run.in<T>(0), run.in<T>(1), run.in<T>(2), run.in<T>(3), run.out<T>(0),
                                           weighted ? run.out<T>(1) : nullptr, weighted ? run.out<T>(2) : nullptr,
                                           row_affine<T>(run, 4, spread), eps, m.k, m.n,
                                           static_cast<T*>(run.workspace));
                     };
                   })
      .unless(refused_rows<T>)
      .workspace([](const Use& use) {
        const Middle m(use.inputs[0].shape, axes_of(use));
        return layer_norm_backward_bytes<T>(m.k, m.n, spread_of(use, 4).count);
      })
      .inplace(1)
      .inplace(0);
  kernels
      .prepared<T>("rms_norm",
                   [](const Use& use) -> Function {
                     const int64_t n = use.inputs[0].shape.back(), rows = use.inputs[0].size() / n;
                     const Spread spread = spread_of(use, 1);
                     const T eps = static_cast<T>(use.number("eps", 0));
                     return [=](const Run& run) {
                       rms_norm(run.in<T>(0), run.out<T>(0), RowAffine<T>{optional<T>(run, 1), nullptr, spread}, eps,
                                rows, n);
                     };
                   })
      .unless(mixed<T>)
      .inplace(0);
  kernels
      .prepared<T>("moving_average",
                   [](const Use& use) -> Function {
                     const double momentum = use.number("momentum", 0), factor = use.number("factor", 1);
                     const T old = static_cast<T>(momentum), fresh = static_cast<T>((1 - momentum) * factor);
                     return [=, size = use.outputs[0].size()](const Run& run) {
                       const T *average = run.in<T>(0), *value = run.in<T>(1);
                       T* y = run.out<T>(0);
                       for (int64_t i = 0; i < size; ++i) y[i] = average[i] * old + value[i] * fresh;
                     };
                   })
      .unless(mixed<T>)
      .inplace(0);
}

}  // namespace

void add_normalise(Kernels& kernels) {
  for_types<float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    add_batch_norm<T>(kernels);
    add_layer_norm<T>(kernels);
  });
  add_channels_last(kernels);
  also_halves(kernels, {"batch_norm_train", "batch_norm_infer", "batch_norm_backward", "layer_norm",
                        "layer_norm_backward", "rms_norm", "moving_average"});
}
