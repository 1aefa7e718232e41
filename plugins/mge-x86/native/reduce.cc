// sum, prod, mean, max, min over any axes.
#include "mge/cpu/reduce.hpp"

#include "mge/cpu/halves.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

// Integers are joined as unsigned ones, which wrap, of at least 32 bits; floats as they are.
template <class T, bool = std::is_floating_point_v<T>>
struct Sums {
  using type = T;
};
template <class T>
struct Sums<T, false> {
  using type = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;
};

template <class Join, class A, class T>
void add_reduction(Kernels& kernels, const char* op, bool is_mean = false) {
  kernels
      .prepared<T>(op,
                   [is_mean](const Use& use) -> Function {
                     const Reduction plan(use.inputs[0].shape, axes_of(use));
                     const int64_t size = use.outputs[0].size();
                     const A count = static_cast<A>(size ? use.inputs[0].size() / size : 1);
                     return [=](const Run& run) {
                       // bool is read as bytes of 0 and 1
                       using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
                       A* y = run.out<A>(0);
                       plan.run<Join, A>(run.in<Element>(0), y, run.workspace);
                       if (is_mean)
                         for (int64_t i = 0; i < size; ++i) y[i] = y[i] / count;
                     };
                   })
      .workspace([](const Use& use) {
        return Reduction(use.inputs[0].shape, axes_of(use)).workspace_bytes(sizeof(A));
      });
}

}  // namespace

void add_reduce(Kernels& kernels) {
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float, double>(
      [&](auto tag) {
        using T = typename decltype(tag)::type;
        add_reduction<Sum, typename Sums<T>::type, T>(kernels, "sum");
      });
  for_types<int32_t, int64_t, float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    add_reduction<Product, typename Sums<T>::type, T>(kernels, "prod");
  });
  for_types<bool, int8_t, int32_t, int64_t, uint8_t, float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
    add_reduction<Largest, Element, T>(kernels, "max");
    add_reduction<Smallest, Element, T>(kernels, "min");
  });
  add_reduction<Sum, float, float>(kernels, "mean", true);
  add_reduction<Sum, double, double>(kernels, "mean", true);
  also_halves(kernels, {"sum", "prod", "mean", "max", "min"});
}
