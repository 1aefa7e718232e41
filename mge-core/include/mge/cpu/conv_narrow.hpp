// mge/cpu/conv_narrow.hpp: convolutions with few outputs, which would leave most lanes of a vector empty.
//
// In: a ConvShape, ConvData. Out: as conv.hpp. After conv.hpp.
//
// Pixels that lie side by side in a row are computed as one pixel with several times the outputs: in NHWC that is the same
// memory. Their common kernel is wider by the steps between them, with zeros where a pixel has no weight. So two pixels of
// 6 outputs and a 5x5 kernel take 12 lanes and 5x6 taps, in place of twice 6 lanes and 5x5 taps. An infinity or a NaN in
// the image spreads to all pixels that are computed together.
#ifndef MGE_CPU_CONV_NARROW_HPP
#define MGE_CPU_CONV_NARROW_HPP

#include "mge/cpu/conv.hpp"

namespace mge::cpu {

class NarrowConv {
 public:
  explicit NarrowConv(const ConvShape& shape) : s_(shape), pixels_(best(shape)), conv_(joined(shape, pixels_)) {}

  int64_t workspace_floats() const { return weight_floats() + conv_.workspace_floats(); }

  // `workspace`: workspace_floats(), aligned to 64 bytes.
  void run(ConvData data, float* workspace) const {
    if (pixels_ > 1) join(data, workspace);
    conv_.run(data, workspace + weight_floats());
  }

 private:
  static int64_t wide_kernel(const Axis& w, int64_t pixels) { return w.kernel + (pixels - 1) * w.stride; }
  static ConvShape joined(ConvShape s, int64_t pixels) {
    s.outputs *= pixels;
    s.w = {s.w.length, s.w.count / pixels, wide_kernel(s.w, pixels), s.w.stride * pixels, s.w.padding, s.w.dilation};
    return s;
  }
  // Pixels to join: as many as make the sums shortest, by a quarter at least.
  static int64_t best(const ConvShape& s) {
    int64_t chosen = 1;
    double least = 0.8 * vectors(s, 1);
    if (s.groups > 1 || s.w.dilation > 1 || s.w.kernel == 1 || !s.outputs) return 1;
    for (int64_t p = 2; p * s.outputs <= kBlock; ++p)
      if (s.w.count % p == 0 && vectors(s, p) < least) chosen = p, least = vectors(s, p);
    return chosen;
  }
  static double vectors(const ConvShape& s, int64_t pixels) {  // products of one row of the kernel, for each pixel
    return static_cast<double>(ceil_div(pixels * s.outputs, kWidth) * wide_kernel(s.w, pixels)) / static_cast<double>(pixels);
  }

  int64_t rows() const { return s_.d.kernel * s_.h.kernel; }
  int64_t row_floats() const { return wide_kernel(s_.w, pixels_) * s_.channels * kBlock; }
  int64_t weight_floats() const { return pixels_ > 1 ? kBlock + rows() * row_floats() : 0; }

  // Weights and bias of the joined pixels: bias[16], then [kd][kh][kw][c][16].
  void join(ConvData& data, float* to) const {
    std::fill_n(to, weight_floats(), 0.0f);
    const int64_t o = s_.outputs, row = s_.w.kernel * s_.channels;
    for (int64_t p = 0; p < pixels_; ++p) {
      if (data.bias) std::copy_n(data.bias, o, to + p * o);
      for (int64_t r = 0; r < rows(); ++r) {
        const float* from = data.packed + r * row * kBlock;
        float* at = to + kBlock + r * row_floats() + p * (s_.w.stride * s_.channels * kBlock + o);
        for (int64_t i = 0; i < row; ++i) std::copy_n(from + i * kBlock, o, at + i * kBlock);
      }
    }
    data.packed = to + kBlock;
    if (data.bias) data.bias = to;
  }

  ConvShape s_;
  int64_t pixels_;
  Conv conv_;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_CONV_NARROW_HPP
