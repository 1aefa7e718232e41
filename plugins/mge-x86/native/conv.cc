// Direct convolution: x86::pack_weight and x86::conv with algorithm "direct", and the base op conv on NCHW data.
#include "mge/cpu/conv_narrow.hpp"

#include "mge/cpu/halves.hpp"
#include "mge/cpu/strided.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

int64_t product_of(const std::vector<int64_t>& shape, size_t first) {
  int64_t size = 1;
  for (size_t i = first; i < shape.size(); ++i) size *= shape[i];
  return size;
}

std::string refuse_others(const Use& use) {
  return use.text("algorithm") == "direct" ? "" : "another algorithm";
}

void pack(const WeightPacking& packing, const float* weight, float* packed) {
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, packing.block_floats()));
  parallel_for(packing.blocks(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) packing.pack(weight, i, packed);
  });
}

Function pack_weight(const Use& use) {
  const auto& shape = use.inputs[0].shape;
  const WeightPacking packing(shape[0], shape[1], product_of(shape, 2), use.integer("groups", 1), use.flag("rotate"));
  return [packing](const Run& run) { pack(packing, run.in<float>(0), run.out<float>(0)); };
}

// Axis `i` of `count` spatial axes; those in front that are missing have length 1.
Axis axis_of(const Use& use, const std::vector<int64_t>& size, const std::vector<int64_t>& result,
             const std::vector<int64_t>& kernel, int64_t i) {
  if (i < 0) return {1, 1, 1, 1, 0, 1};
  return {size[i], result[i], kernel[i], use.integers("stride")[i], use.integers("padding")[i],
          use.integers("dilation")[i]};
}

ConvShape shape_of(const Use& use, const std::vector<int64_t>& size, const std::vector<int64_t>& result,
                   const std::vector<int64_t>& weight) {
  const std::vector<int64_t> kernel(weight.begin() + 2, weight.end());
  const int64_t axes = static_cast<int64_t>(kernel.size()), groups = use.integer("groups", 1);
  auto axis = [&](int64_t back) { return axis_of(use, size, result, kernel, axes - back); };
  return {use.inputs[0].shape[0], weight[1] * groups, weight[0], groups, axis(3), axis(2), axis(1)};
}

uint64_t scratch_bytes(const NarrowConv& conv) {
  return 4 * static_cast<uint64_t>(conv.workspace_floats());
}

// x86::conv, on (n, h, w, c).
ConvShape nhwc_shape(const Use& use) {
  const auto &x = use.inputs[0].shape, &y = use.outputs[0].shape;
  return shape_of(use, {x[1], x[2]}, {y[1], y[2]}, use.integers("weight_shape"));
}

Function conv_nhwc(const Use& use) {
  const NarrowConv conv(nhwc_shape(use));
  const bool has_bias = use.flag("bias"), has_residual = use.flag("residual");
  const Activation activation = activation_of(use.text("activation"));
  return [=](const Run& run) {
    conv.run({run.in<float>(0), run.in<float>(1), run.out<float>(0), has_bias ? run.in<float>(2) : nullptr,
              has_residual ? run.in<float>(2 + has_bias) : nullptr, activation},
             static_cast<float*>(run.workspace));
  };
}

// The base op: images and weights are brought into the layouts of the kernel, in the workspace, and the result back.
struct Nchw {
  ConvShape shape;
  NarrowConv conv;
  WeightPacking packing;
  int64_t x_floats, packed_floats, y_floats;

  explicit Nchw(const Use& use)
      : shape(of(use)), conv(shape), packing(shape.outputs, shape.group_channels(), shape.taps(), shape.groups, false),
        x_floats(round_up(use.inputs[0].size(), 16)), packed_floats(round_up(shape.packed_floats(), 16)),
        y_floats(round_up(use.outputs[0].size(), 16)) {}

  static ConvShape of(const Use& use) {
    auto spatial = [](const std::vector<int64_t>& full) { return std::vector<int64_t>(full.begin() + 2, full.end()); };
    return shape_of(use, spatial(use.inputs[0].shape), spatial(use.outputs[0].shape), use.inputs[1].shape);
  }
  uint64_t bytes() const {
    return 4 * static_cast<uint64_t>(x_floats + packed_floats + y_floats) + scratch_bytes(conv);
  }
};

Function conv_nchw(const Use& use) {
  const Nchw s(use);
  const int64_t images = s.shape.images, c = s.shape.channels, o = s.shape.outputs;
  const int64_t p = product_of(use.inputs[0].shape, 2), q = product_of(use.outputs[0].shape, 2);
  const StridedCopy to_nhwc({images, p, c}, {c * p, 1, p}, {p * c, c, 1}, 4);
  const StridedCopy to_nchw({images, o, q}, {q * o, 1, o}, {o * q, q, 1}, 4);
  return [=](const Run& run) {
    float* x = static_cast<float*>(run.workspace);
    float *packed = x + s.x_floats, *y = packed + s.packed_floats, *scratch = y + s.y_floats;
    to_nhwc(run.in<float>(0), x);
    pack(s.packing, run.in<float>(1), packed);
    s.conv.run({x, packed, y, nullptr, nullptr, {}}, scratch);
    to_nchw(y, run.out<float>(0));
  };
}

}  // namespace

void add_conv(Kernels& kernels) {
  kernels.prepared<float>("x86::pack_weight", pack_weight).unless(refuse_others);
  kernels.prepared<float>("x86::conv", conv_nhwc)
      .unless(refuse_others)
      .named([](const Use& use) { return nhwc_shape(use).is_product() ? "x86::conv product" : "x86::conv direct"; })
      .workspace([](const Use& use) { return scratch_bytes(NarrowConv(nhwc_shape(use))); })
      .inplace_of(over_residual);
  kernels.prepared<float>("conv", conv_nchw)
      .named([](const Use& use) { return Nchw::of(use).is_product() ? "conv product" : "conv direct"; })
      .workspace([](const Use& use) { return Nchw(use).bytes(); });
  also_halves(kernels, {"conv"});
}
