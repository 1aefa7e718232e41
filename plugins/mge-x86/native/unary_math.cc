// Elementary functions on floats, the activations made of them, and those that go through libm.
#include "mge/cpu/elementwise.hpp"
#include "mge/cpu/math.hpp"

using namespace mge;
using namespace mge::cpu;

namespace {

void add_functions(Kernels& kernels) {
  add_unary(kernels, "exp", [](auto x) { return cpu::exp(x); }, kCostly);
  add_unary(kernels, "expm1", [](auto x) { return cpu::expm1(x); }, kCostly);
  add_unary(kernels, "log", [](auto x) { return cpu::log(x); }, kCostly);
  add_unary(kernels, "log1p", [](auto x) { return cpu::log1p(x); }, kCostly);
  add_unary(kernels, "tanh", [](auto x) { return cpu::tanh(x); }, kCostly);
  add_unary(kernels, "erf", [](auto x) { return cpu::erf(x); }, kCostly);
  add_unary(kernels, "sin", [](auto x) { return cpu::sin(x); }, kCostly);
  add_unary(kernels, "cos", [](auto x) { return cpu::cos(x); }, kCostly);
  add_unary(kernels, "tan", [](auto x) { return cpu::tan(x); }, kCostly);
}

void add_activations(Kernels& kernels) {
  add_unary(kernels, "sigmoid", [](auto x) { return cpu::sigmoid(x); }, kCostly);
  add_unary(kernels, "silu", [](auto x) { return cpu::silu(x); }, kCostly);
  add_unary(kernels, "softplus", [](auto x) { return cpu::softplus(x); }, kCostly);
  add_unary(kernels, "logsigmoid", [](auto x) { return -cpu::softplus(-x); }, kCostly);
  add_unary(kernels, "mish", [](auto x) { return x * cpu::tanh(cpu::softplus(x)); }, kCostly);
  add_unary_with(kernels, "gelu", [](const Use& use) {
    bool by_tanh = use.text("approximate") == "tanh";
    return [by_tanh](auto x) { return by_tanh ? gelu_tanh(x) : gelu(x); };
  }, kCostly);
  add_unary_with(kernels, "elu", [](const Use& use) {
    double alpha = use.number("alpha", 1.0);
    return [alpha](auto x) {
      using V = decltype(x);
      using S = std::conditional_t<std::is_same_v<V, vf>, float, V>;
      return select(x > 0, x, static_cast<S>(alpha) * cpu::expm1(minimum(x, V{})));
    };
  }, kCostly);
}

// A function of scalars, for each lane.
template <class F>
auto by_lane(F f) {
  return [f](auto... x) {
    if constexpr ((std::is_same_v<decltype(x), vf> && ...)) {
      vf y;
      for (int i = 0; i < kWidth; ++i) y[i] = f(x[i]...);
      return y;
    } else {
      return f(x...);
    }
  };
}
constexpr int64_t kSlow = 2048;  // elements a chunk

void add_libm(Kernels& kernels) {
  add_binary(kernels, "pow", by_lane([](auto x, auto y) { return std::pow(x, y); }), kSlow);
  add_binary(kernels, "atan2", by_lane([](auto y, auto x) { return std::atan2(y, x); }), kSlow);
  add_binary(kernels, "mod", by_lane([](auto x, auto y) { return cpu::remainder(x, y); }), kSlow);
  add_binary(kernels, "floor_div", by_lane([](auto x, auto y) { return floor_divide(x, y); }), kSlow);
  add_binary(kernels, "logaddexp", by_lane([](auto x, auto y) {
    auto apart = x - y;
    if (x == y) return x + decltype(x)(0.69314718055994531);
    return maximum(x, y) + std::log1p(std::exp(apart > 0 ? -apart : apart));
  }), kSlow);
  add_unary(kernels, "asin", by_lane([](auto x) { return std::asin(x); }), kSlow);
  add_unary(kernels, "acos", by_lane([](auto x) { return std::acos(x); }), kSlow);
  add_unary(kernels, "atan", by_lane([](auto x) { return std::atan(x); }), kSlow);
  add_unary(kernels, "sinh", by_lane([](auto x) { return std::sinh(x); }), kSlow);
  add_unary(kernels, "cosh", by_lane([](auto x) { return std::cosh(x); }), kSlow);
  add_unary(kernels, "asinh", by_lane([](auto x) { return std::asinh(x); }), kSlow);
  add_unary(kernels, "acosh", by_lane([](auto x) { return std::acosh(x); }), kSlow);
  add_unary(kernels, "atanh", by_lane([](auto x) { return std::atanh(x); }), kSlow);
  add_unary_with(kernels, "pow_scalar", [](const Use& use) {
    double exponent = use.number("exponent", 1.0);
    auto power = by_lane([exponent](auto x) { return std::pow(x, static_cast<decltype(x)>(exponent)); });
    return [exponent, power](auto x) {
      if (exponent == 3) return x * x * x;
      if (exponent == -1) return 1 / x;
      return power(x);
    };
  }, kSlow);
}

}  // namespace

void add_unary_math(Kernels& kernels) {
  add_functions(kernels);
  add_activations(kernels);
  add_libm(kernels);
}
