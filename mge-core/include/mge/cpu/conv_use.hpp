// mge/cpu/conv_use.hpp: what the uses of convolution ops say about themselves, for their kernels.
//
// In: a Use of `conv`, `x86::conv` or one of their gradients. Out: its ConvShape, and copies between NCHW and NHWC.
// After conv.hpp and strided.hpp.
#ifndef MGE_CPU_CONV_USE_HPP
#define MGE_CPU_CONV_USE_HPP

#include <vector>

#include "mge/cpu/conv.hpp"
#include "mge/cpu/strided.hpp"

namespace mge::cpu {

using Shape = std::vector<int64_t>;

// The spatial sizes of (n, c, *size) and of (n, *size, c).
inline Shape sizes_of_nchw(const Shape& shape) { return {shape.begin() + 2, shape.end()}; }
inline Shape sizes_of_nhwc(const Shape& shape) { return {shape.begin() + 1, shape.end() - 1}; }

// `size` and `result` are spatial; axes in front that are missing have length 1.
inline ConvShape conv_shape(const Use& use, int64_t images, const Shape& size, const Shape& result, const Shape& weight) {
  const int64_t axes = static_cast<int64_t>(size.size()), groups = use.integer("groups", 1);
  const Shape stride = use.integers("stride"), padding = use.integers("padding"), dilation = use.integers("dilation");
  auto axis = [&](int64_t back) -> Axis {
    if (back > axes) return {1, 1, 1, 1, 0, 1};
    const size_t i = static_cast<size_t>(axes - back);
    return {size[i], result[i], weight[i + 2], stride[i], padding[i], dilation[i]};
  };
  return {images, weight[1] * groups, weight[0], groups, axis(3), axis(2), axis(1)};
}

inline int64_t positions_of(const Shape& sizes) {
  int64_t count = 1;
  for (int64_t n : sizes) count *= n;
  return count;
}

// Copies float32 images (n, c, *size) into (n, *size, c), and back.
inline StridedCopy nchw_to_nhwc(const Shape& nchw) {
  const int64_t n = nchw[0], c = nchw[1], p = positions_of(sizes_of_nchw(nchw));
  return StridedCopy({n, p, c}, {c * p, 1, p}, {p * c, c, 1}, 4);
}
inline StridedCopy nhwc_to_nchw(const Shape& nchw) {
  const int64_t n = nchw[0], c = nchw[1], p = positions_of(sizes_of_nchw(nchw));
  return StridedCopy({n, c, p}, {p * c, 1, c}, {c * p, p, 1}, 4);
}

// Scratch memory of each worker, in all.
inline uint64_t worker_bytes(int64_t floats) {
  return 4 * static_cast<uint64_t>(floats) * static_cast<uint64_t>(mge_host->thread_count);
}

// Weights into the form of conv.hpp, on the host's threads.
inline void pack_weight(const WeightPacking& packing, const float* weight, float* packed) {
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, packing.block_floats()));
  parallel_for(packing.blocks(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) packing.pack(weight, i, packed);
  });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_CONV_USE_HPP
