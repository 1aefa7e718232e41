// The gradients of convolutions: x86::conv_backward_data (direct), x86::conv_backward_weight, and the base ops
// conv_backward_data and conv_backward_weight on NCHW data, which are brought into NHWC in the workspace.
#include <optional>

#include "mge/cpu/conv_input.hpp"
#include "mge/cpu/conv_narrow.hpp"
#include "mge/cpu/conv_use.hpp"
#include "mge/cpu/conv_weight.hpp"
#include "mge/cpu/halves.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

// The gradient in the input, by one of two ways.
class InputGradient {
 public:
  explicit InputGradient(const ConvShape& shape) {
    if (is_rotated(shape))
      conv_.emplace(rotated_shape(shape));
    else
      phases_.emplace(shape);
  }
  uint64_t bytes() const {
    return conv_ ? 4 * static_cast<uint64_t>(conv_->workspace_floats()) : worker_bytes(phases_->scratch_floats());
  }
  void run(const float* dy, const float* packed, float* dx, void* workspace) const {
    float* scratch = static_cast<float*>(workspace);
    if (conv_)
      conv_->run({dy, packed, dx, nullptr, nullptr, {}}, scratch);
    else
      phases_->run(dy, packed, dx, scratch);
  }

 private:
  std::optional<NarrowConv> conv_;
  std::optional<ConvInput> phases_;
};

// x86::conv_backward_data, (packed, dy) on (n, h, w, c).
ConvShape nhwc_input_shape(const Use& use) {
  const Shape &dy = use.inputs[1].shape, &dx = use.outputs[0].shape;
  return conv_shape(use, dx[0], sizes_of_nhwc(dx), sizes_of_nhwc(dy), use.integers("weight_shape"));
}

Function input_nhwc(const Use& use) {
  const InputGradient gradient(nhwc_input_shape(use));
  return [gradient](const Run& run) {
    gradient.run(run.in<float>(1), run.in<float>(0), run.out<float>(0), run.workspace);
  };
}

// x86::conv_backward_weight, (x, dy) on (n, h, w, c).
ConvShape nhwc_weight_shape(const Use& use) {
  const Shape &x = use.inputs[0].shape, &dy = use.inputs[1].shape;
  return conv_shape(use, x[0], sizes_of_nhwc(x), sizes_of_nhwc(dy), use.integers("weight_shape"));
}

Function weight_nhwc(const Use& use) {
  const ConvWeight gradient(nhwc_weight_shape(use));
  return [gradient](const Run& run) {
    gradient.run(run.in<float>(0), run.in<float>(1), run.out<float>(0), static_cast<float*>(run.workspace));
  };
}

int64_t padded_floats(const Type& type) { return round_up(type.size(), 16); }

// conv_backward_data, (weight, dy) on (n, c, *size).
struct NchwInput {
  ConvShape shape;
  InputGradient gradient;
  WeightPacking packing;
  int64_t dy_floats, dx_floats, packed_floats;

  explicit NchwInput(const Use& use)
      : shape(conv_shape(use, use.outputs[0].shape[0], sizes_of_nchw(use.outputs[0].shape),
                         sizes_of_nchw(use.inputs[1].shape), use.inputs[0].shape)),
        gradient(shape), packing(shape.outputs, shape.group_channels(), shape.taps(), shape.groups, true),
        dy_floats(padded_floats(use.inputs[1])), dx_floats(padded_floats(use.outputs[0])),
        packed_floats(packing.blocks() * packing.block_floats()) {}

  uint64_t bytes() const {
    return 4 * static_cast<uint64_t>(dy_floats + dx_floats + packed_floats) + gradient.bytes();
  }
};

Function input_nchw(const Use& use) {
  const NchwInput s(use);
  const StridedCopy to_nhwc = nchw_to_nhwc(use.inputs[1].shape), to_nchw = nhwc_to_nchw(use.outputs[0].shape);
  return [=](const Run& run) {
    float* dy = static_cast<float*>(run.workspace);
    float *dx = dy + s.dy_floats, *packed = dx + s.dx_floats;
    to_nhwc(run.in<float>(1), dy);
    pack_weight(s.packing, run.in<float>(0), packed);
    s.gradient.run(dy, packed, dx, packed + s.packed_floats);
    to_nchw(dx, run.out<float>(0));
  };
}

// conv_backward_weight, (x, dy) on (n, c, *size).
ConvShape nchw_weight_shape(const Use& use) {
  const Shape &x = use.inputs[0].shape, &dy = use.inputs[1].shape;
  return conv_shape(use, x[0], sizes_of_nchw(x), sizes_of_nchw(dy), use.outputs[0].shape);
}

Function weight_nchw(const Use& use) {
  const ConvWeight gradient(nchw_weight_shape(use));
  const StridedCopy x_to_nhwc = nchw_to_nhwc(use.inputs[0].shape), dy_to_nhwc = nchw_to_nhwc(use.inputs[1].shape);
  const int64_t x_floats = padded_floats(use.inputs[0]), dy_floats = padded_floats(use.inputs[1]);
  return [=](const Run& run) {
    float* x = static_cast<float*>(run.workspace);
    float* dy = x + x_floats;
    x_to_nhwc(run.in<float>(0), x);
    dy_to_nhwc(run.in<float>(1), dy);
    gradient.run(x, dy, run.out<float>(0), dy + dy_floats);
  };
}

uint64_t weight_bytes(const ConvShape& shape) {
  return 4 * static_cast<uint64_t>(ConvWeight(shape).workspace_floats());
}

}  // namespace

void add_conv_backward(Kernels& kernels) {
  kernels.prepared<float>("x86::conv_backward_data", input_nhwc)
      .named([](const Use&) -> std::string { return "x86::conv_backward_data direct"; })
      .unless([](const Use& use) { return use.text("algorithm") == "direct" ? "" : "another algorithm"; })
      .workspace([](const Use& use) { return InputGradient(nhwc_input_shape(use)).bytes(); });
  kernels.prepared<float>("x86::conv_backward_weight", weight_nhwc)
      .unless([](const Use& use) {
        const ConvShape s = nhwc_weight_shape(use);
        return s.groups == s.channels && s.groups == s.outputs ? "depthwise" : "";
      })
      .workspace([](const Use& use) { return weight_bytes(nhwc_weight_shape(use)); });
  kernels.prepared<float>("conv_backward_data", input_nchw).workspace([](const Use& use) {
    return NchwInput(use).bytes();
  });
  kernels.prepared<float>("conv_backward_weight", weight_nchw).workspace([](const Use& use) {
    return 4 * static_cast<uint64_t>(padded_floats(use.inputs[0]) + padded_floats(use.inputs[1])) +
           weight_bytes(nchw_weight_shape(use));
  });
  also_halves(kernels, {"conv_backward_data", "conv_backward_weight"});
}
