// Arithmetic and activations on floats.
#include "mge/cpu/elementwise.hpp"
#include "mge/cpu/math.hpp"

using namespace mge;
using namespace mge::cpu;

namespace {

// A number of Python as the type that a function works on: float for vectors of float32.
template <class V>
using Scalar = std::conditional_t<std::is_same_v<V, vf>, float, V>;

void add_arithmetic(Kernels& kernels) {
  add_binary(kernels, "add", [](auto x, auto y) { return x + y; });
  add_binary(kernels, "sub", [](auto x, auto y) { return x - y; });
  add_binary(kernels, "mul", [](auto x, auto y) { return x * y; });
  add_binary(kernels, "div", [](auto x, auto y) { return x / y; });
  add_binary(kernels, "maximum", [](auto x, auto y) { return maximum(x, y); });
  add_binary(kernels, "minimum", [](auto x, auto y) { return minimum(x, y); });
  add_unary(kernels, "neg", [](auto x) { return -x; });
  add_unary(kernels, "abs", [](auto x) { return cpu::abs(x); });
  add_unary(kernels, "square", [](auto x) { return x * x; });
  add_unary(kernels, "sqrt", [](auto x) { return cpu::sqrt(x); });
  add_unary(kernels, "rsqrt", [](auto x) { return 1 / cpu::sqrt(x); });
  add_unary(kernels, "floor", [](auto x) { return cpu::floor(x); });
  add_unary(kernels, "ceil", [](auto x) { return cpu::ceil(x); });
  add_unary(kernels, "round", [](auto x) { return cpu::round(x); });
  add_unary(kernels, "sign", [](auto x) {
    using V = decltype(x);
    V unit = V{} + 1;
    return select(x > 0, unit, select(x < 0, -unit, x));
  });
  add_unary(kernels, "relu", [](auto x) { return cpu::relu(x); });
  add_unary(kernels, "relu6", [](auto x) { return cpu::relu6(x); });
  add_unary(kernels, "hsigmoid", [](auto x) { return cpu::hsigmoid(x); });
  add_unary(kernels, "hswish", [](auto x) { return cpu::hswish(x); });
  add_unary(kernels, "softsign", [](auto x) { return x / (1 + cpu::abs(x)); });
}

// Ops with attributes.
void add_bounded(Kernels& kernels) {
  add_unary_with(kernels, "clip", [](const Use& use) {
    double low = use.number("lower", -HUGE_VAL), high = use.number("upper", HUGE_VAL);
    return [low, high](auto x) {
      using V = decltype(x);
      V least = V{} + static_cast<Scalar<V>>(low), most = V{} + static_cast<Scalar<V>>(high);
      return minimum(maximum(x, least), most);
    };
  });
  add_unary_with(kernels, "leaky_relu", [](const Use& use) {
    double slope = use.number("negative_slope", 0.01);
    return [slope](auto x) { return select(x > 0, x, x * static_cast<Scalar<decltype(x)>>(slope)); };
  });
  add_unary_with(kernels, "hardshrink", [](const Use& use) {
    double bound = use.number("lambd", 0.5);
    return [bound](auto x) {
      using V = decltype(x);
      return select(cpu::abs(x) <= static_cast<Scalar<V>>(bound), V{}, x);
    };
  });
  add_unary_with(kernels, "softshrink", [](const Use& use) {
    double bound = use.number("lambd", 0.5);
    return [bound](auto x) {
      using V = decltype(x);
      V most = V{} + static_cast<Scalar<V>>(bound);
      return x - minimum(maximum(x, -most), most);
    };
  });
}

// The shape of prelu's weight beside the input: one value, one a channel (axis 1), or one that broadcasts by itself.
Shape aligned(const Use& use) {
  Shape weight = use.inputs[1].shape, inp = use.inputs[0].shape;
  if (use.inputs[1].size() == 1) return {};
  if (weight.size() == 1 && inp.size() > 1 && weight[0] == inp[1]) weight.insert(weight.end(), inp.size() - 2, 1);
  return weight;
}

void add_prelu(Kernels& kernels) {
  auto prelu = [](auto x, auto slope) { return select(x > 0, x, x * slope); };
  auto run = [](Block block) {
    return [block](const Use& use) { return broadcast(use, block, kCheap, {use.inputs[0].shape, aligned(use)}); };
  };
  Block narrow = binary_block<float>(prelu);
  kernels.prepared<float>("prelu", run(narrow)).inplace(0);
  kernels.prepared<double>("prelu", run(binary_block<double>(prelu))).inplace(0);
  kernels.prepared<float16>("prelu", run(widened<float16>(narrow, 2, true))).inplace(0);
  kernels.prepared<bfloat16>("prelu", run(widened<bfloat16>(narrow, 2, true))).inplace(0);
}

}  // namespace

void add_elementwise(Kernels& kernels) {
  add_arithmetic(kernels);
  add_bounded(kernels);
  add_prelu(kernels);
}
