// softmax, logsoftmax, softmax_cross_entropy and its gradient, pick_class.
#include "mge/cpu/softmax.hpp"

#include "mge/cpu/halves.hpp"
#include "mge/cpu/positions.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

// None means axis 0 for tensors with at most 1 or 3 axes, else 1.
Middle scores(const Use& use) {
  const auto& shape = use.inputs[0].shape;
  const int64_t usual = shape.size() <= 1 || shape.size() == 3 ? 0 : 1;
  return Middle(shape, use.has("axis") ? use.integers("axis") : std::vector<int64_t>{usual});
}

Middle classes(const Use& use, size_t input) { return Middle(use.inputs[input].shape, {use.integer("axis", 1)}); }

// The labels as int64, in the workspace, checked.
const int64_t* labels(const Run& run, size_t input, const Middle& m) {
  int64_t* label = static_cast<int64_t*>(run.workspace);
  read_integers(*run.inputs[input], m.k * m.c, label);
  check_labels(label, m.k * m.c, m.n);
  return label;
}

template <size_t input>
uint64_t label_bytes(const Use& use) {
  return 8 * static_cast<uint64_t>(use.inputs[input].size());
}

template <class T>
void add(Kernels& kernels) {
  using Kind = void (*)(const T*, T*, int64_t, int64_t, int64_t);
  for (auto [op, kernel] : {std::pair<const char*, Kind>{"softmax", softmax<T>}, {"logsoftmax", logsoftmax<T>}})
    kernels
        .prepared<T>(op,
                     [kernel = kernel](const Use& use) -> Function {
                       const Middle m = scores(use);
                       return [=](const Run& run) {
                         if (m.n) kernel(run.in<T>(0), run.out<T>(0), m.k, m.n, m.c);
                       };
                     })
        .unless([](const Use& use) { return scores(use).whole ? "" : "other axes lie between those of the softmax"; })
        .inplace(0);
  kernels
      .prepared<T>("softmax_cross_entropy",
                   [](const Use& use) -> Function {
                     const Middle m = classes(use, 0);
                     const T smooth = static_cast<T>(use.number("label_smooth", 0));
                     return [=](const Run& run) {
                       cross_entropy(run.in<T>(0), labels(run, 1, m), smooth, run.out<T>(0), m.k, m.n, m.c);
                     };
                   })
      .workspace(label_bytes<1>);
  kernels
      .prepared<T>("softmax_cross_entropy_grad",
                   [](const Use& use) -> Function {
                     const Middle m = classes(use, 1);
                     const T smooth = static_cast<T>(use.number("label_smooth", 0));
                     return [=](const Run& run) {
                       const int64_t* label = labels(run, 2, m);
                       cross_entropy_grad(run.in<T>(0), run.in<T>(1), label, smooth, run.out<T>(0), m.k, m.n, m.c);
                     };
                   })
      .workspace(label_bytes<2>)
      .inplace(1);
  kernels
      .prepared<T>("pick_class",
                   [](const Use& use) -> Function {
                     const Middle m = classes(use, 0);
                     return [=](const Run& run) {
                       const int64_t* label = labels(run, 1, m);
                       const T* x = run.in<T>(0);
                       T* y = run.out<T>(0);
                       for (int64_t r = 0; r < m.k; ++r)
                         for (int64_t j = 0; j < m.c; ++j)
                           y[r * m.c + j] = x[(r * m.n + label[r * m.c + j]) * m.c + j];
                     };
                   })
      .workspace(label_bytes<1>);
}

}  // namespace

void add_softmax(Kernels& kernels) {
  add<float>(kernels);
  add<double>(kernels);
  also_halves(kernels, {"softmax", "logsoftmax", "softmax_cross_entropy", "softmax_cross_entropy_grad", "pick_class"});
}
