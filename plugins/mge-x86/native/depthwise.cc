// Depthwise convolution, NHWC: x86::pack_weight, x86::conv and x86::conv_backward_data with algorithm "depthwise", and
// x86::conv_backward_weight for such weights.
#include "mge/cpu/depthwise.hpp"

#include "mge/cpu/conv_use.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

std::string refuse_others(const Use& use) {
  return use.text("algorithm") == "depthwise" ? "" : "another algorithm";
}

// (c, 1, kh, kw) into [kh][kw][c]; rotated, the taps are reversed.
Function pack_depthwise(const Use& use) {
  const auto& shape = use.inputs[0].shape;
  const int64_t channels = shape[0], taps = shape[2] * shape[3];
  const bool rotate = use.flag("rotate");
  return [=](const Run& run) {
    const float* weight = run.in<float>(0);
    float* packed = run.out<float>(0);
    for (int64_t tap = 0; tap < taps; ++tap)
      for (int64_t c = 0; c < channels; ++c)
        packed[tap * channels + c] = weight[c * taps + (rotate ? taps - 1 - tap : tap)];
  };
}

void run_rows(const Depthwise& d, const DepthwiseOperands& operands, const Activation& activation) {
  const int64_t row = d.out_width * d.channels;
  parallel_for(d.images * d.out_height, depthwise_chunk_rows(d), [&](int64_t begin, int64_t end) {
    depthwise_rows(d, operands, begin, end);
    if (activation.rows) activation.rows(operands.y + begin * row, row, end - begin, row);
  });
}

// Of a use whose images are x and whose result is y, both (n, h, w, c).
ConvShape shape_of(const Use& use, const Shape& x, const Shape& y) {
  return conv_shape(use, x[0], sizes_of_nhwc(x), sizes_of_nhwc(y), use.integers("weight_shape"));
}

Function conv_depthwise(const Use& use) {
  const ConvShape s = shape_of(use, use.inputs[0].shape, use.outputs[0].shape);
  const Depthwise d = depthwise_forward(s.images, s.channels, s.h, s.w);
  const Activation activation = activation_of(use.text("activation"));
  const bool bias = use.flag("bias"), residual = use.flag("residual");
  return [=](const Run& run) {
    run_rows(d,
             {run.in<float>(0), run.in<float>(1), run.out<float>(0), bias ? run.in<float>(2) : nullptr,
              residual ? run.in<float>(2 + bias) : nullptr, activation.low, activation.high},
             activation);
  };
}

Function backward_data(const Use& use) {
  const ConvShape s = shape_of(use, use.outputs[0].shape, use.inputs[1].shape);
  const Depthwise d = depthwise_backward_data(s.images, s.channels, s.h, s.w);
  return [d](const Run& run) {
    run_rows(d, {run.in<float>(1), run.in<float>(0), run.out<float>(0), nullptr, nullptr}, {});
  };
}

DepthwiseWeight weight_gradient(const Use& use) {
  const ConvShape s = shape_of(use, use.inputs[0].shape, use.inputs[1].shape);
  return DepthwiseWeight(depthwise_forward(s.images, s.channels, s.h, s.w));
}

Function backward_weight(const Use& use) {
  const DepthwiseWeight gradient = weight_gradient(use);
  return [gradient](const Run& run) {
    gradient.run(run.in<float>(0), run.in<float>(1), run.out<float>(0), static_cast<float*>(run.workspace));
  };
}

}  // namespace

void add_depthwise(Kernels& kernels) {
  kernels.prepared<float>("x86::pack_weight", pack_depthwise).unless(refuse_others);
  auto title = [](const Use& use) { return use.name + " depthwise"; };
  kernels.prepared<float>("x86::conv", conv_depthwise).unless(refuse_others).named(title).inplace_of(over_residual);
  kernels.prepared<float>("x86::conv_backward_data", backward_data).unless(refuse_others).named(title);
  kernels.prepared<float>("x86::conv_backward_weight", backward_weight)
      .named(title)
      .unless([](const Use& use) {
        const auto weight = use.integers("weight_shape");
        const bool depthwise = weight[1] == 1 && weight[0] == use.integer("groups", 1);
        return depthwise ? "" : "not depthwise";
      })
      .workspace([](const Use& use) { return 4 * static_cast<uint64_t>(weight_gradient(use).workspace_floats()); });
}
