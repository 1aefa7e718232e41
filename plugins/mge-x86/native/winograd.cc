// Winograd's convolutions, NHWC: x86::pack_weight, x86::conv and x86::conv_backward_data with algorithm "winograd2"
// and "winograd4".
#include "mge/cpu/winograd.hpp"

#include "mge/cpu/conv_input.hpp"
#include "mge/cpu/conv_use.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

template <int M>
Function pack(const Use& use) {
  const auto& shape = use.inputs[0].shape;
  const WinogradPacking<M> packing(shape[0], shape[1], use.flag("rotate"));
  return [packing](const Run& run) {
    parallel_for(packing.blocks(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        packing.pack(run.in<float>(0), i, run.out<float>(0) + i * packing.block_floats());
    });
  };
}

ConvShape forward_shape(const Use& use) {
  const Shape &x = use.inputs[0].shape, &y = use.outputs[0].shape;
  return conv_shape(use, x[0], sizes_of_nhwc(x), sizes_of_nhwc(y), use.integers("weight_shape"));
}

// Weights that come as (o, c, 3, 3) are packed on the way.
template <int M>
Winograd<M> kernel_of(const ConvShape& shape, const Shape& weight, bool rotate) {
  if (weight.size() == 1) return Winograd<M>(shape);
  return Winograd<M>(shape, WinogradPacking<M>(weight[0], weight[1], rotate));
}

template <int M>
Winograd<M> forward(const Use& use) {
  return kernel_of<M>(forward_shape(use), use.inputs[1].shape, false);
}

template <int M>
Function conv(const Use& use) {
  const Winograd<M> kernel = forward<M>(use);
  const Activation activation = activation_of(use.text("activation"));
  const bool bias = use.flag("bias"), residual = use.flag("residual");
  return [=](const Run& run) {
    kernel.run({run.in<float>(0), run.in<float>(1), run.out<float>(0), bias ? run.in<float>(2) : nullptr,
                residual ? run.in<float>(2 + bias) : nullptr, activation},
               static_cast<float*>(run.workspace));
  };
}

// The convolution of dy with the rotated weight.
ConvShape backward_shape(const Use& use) {
  const Shape &dy = use.inputs[1].shape, &dx = use.outputs[0].shape;
  return rotated_shape(conv_shape(use, dx[0], sizes_of_nhwc(dx), sizes_of_nhwc(dy), use.integers("weight_shape")));
}

template <int M>
Winograd<M> backward(const Use& use) {
  return kernel_of<M>(backward_shape(use), use.inputs[0].shape, true);
}

template <int M>
Function backward_data(const Use& use) {
  const Winograd<M> kernel = backward<M>(use);
  return [kernel](const Run& run) {
    kernel.run({run.in<float>(1), run.in<float>(0), run.out<float>(0), nullptr, nullptr, {}},
               static_cast<float*>(run.workspace));
  };
}

template <int M>
void add(Kernels& kernels, const std::string& algorithm) {
  auto refuse_others = [algorithm](const Use& use) -> std::string {
    return use.text("algorithm") == algorithm ? "" : "another algorithm";
  };
  kernels.prepared<float>("x86::pack_weight", pack<M>).unless(refuse_others);
  auto title = [](const Use& use) { return use.name + " " + use.text("algorithm"); };
  kernels.prepared<float>("x86::conv", conv<M>)
      .unless(refuse_others)
      .named(title)
      .workspace([](const Use& use) { return 4 * forward<M>(use).workspace_floats(); })
      .inplace_of(over_residual);
  kernels.prepared<float>("x86::conv_backward_data", backward_data<M>)
      .unless(refuse_others)
      .named(title)
      .workspace([](const Use& use) { return 4 * backward<M>(use).workspace_floats(); });
}

}  // namespace

void add_winograd(Kernels& kernels) {
  add<2>(kernels, "winograd2");
  add<4>(kernels, "winograd4");
}
