// x86::inverted_residual: a block of mobile networks in one kernel, NHWC.
#include "mge/cpu/inverted_residual.hpp"

#include "mge/cpu/conv_use.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

InvertedShape shape_of(const Use& use) {
  const Shape filter = use.integers("filter_shape"), &x = use.inputs[0].shape, &y = use.outputs[0].shape;
  const int64_t kernel = filter[2], stride = use.integer("stride", 1);
  const Axis h{x[1], y[1], kernel, stride, kernel / 2, 1}, w{x[2], y[2], kernel, stride, kernel / 2, 1};
  return {x[0], x[3], filter[0], y[3], use.flag("expands"), h, w};
}

Function run_block(const Use& use) {
  const InvertedResidual block(shape_of(use));
  // Inputs that are not there have number 0.
  size_t count = 3;
  auto next = [&](const char* flag) { return use.flag(flag) ? count++ : 0; };
  const size_t expand = next("expands"), expand_bias = next("expand_bias"), filter_bias = next("filter_bias");
  const size_t bias = next("bias"), residual = next("residual");
  const Activation expanded = activation_of(use.text("expand_activation"));
  const Activation filtered = activation_of(use.text("filter_activation"));
  const Activation activation = activation_of(use.text("activation"));
  return [=](const Run& run) {
    auto in = [&](size_t i) { return i ? run.in<float>(i) : nullptr; };
    block.run({run.in<float>(0), in(expand), in(expand_bias), in(1), in(filter_bias), in(2), in(bias), in(residual),
               run.out<float>(0), expanded, filtered, activation},
              static_cast<float*>(run.workspace));
  };
}

}  // namespace

void add_inverted_residual(Kernels& kernels) {
  kernels.prepared<float>("x86::inverted_residual", run_block).workspace([](const Use& use) {
    return 4 * static_cast<uint64_t>(InvertedResidual(shape_of(use)).workspace_floats(mge_host->thread_count));
  });
}
