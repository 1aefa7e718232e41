// mge/cpu/conv.hpp: convolution in NHWC from the microkernel, over one to three spatial axes.
//
// In: images (n, d, h, w, c), weights packed as [groups][o / groups / 16][kd][kh][kw][c / groups][16].
// Out: y = activation(conv + bias + residual), (n, d, h, w, o). After tile.hpp, taps.hpp, gemm.hpp.
//
// A kernel of size 1 is a matrix product. Any other is cut into units: some output rows of one image, some outputs.
// Where the image is padded, a unit first copies the input rows that it meets, with their borders, into scratch memory
// in the level-2 cache (about 1 % of its time), so that tiles know no borders. The taps of one kernel row lie together
// in NHWC and are one sum, unless groups or dilation part them.
#ifndef MGE_CPU_CONV_HPP
#define MGE_CPU_CONV_HPP

#include <vector>

#include "mge/cpu/gemm.hpp"
#include "mge/cpu/taps.hpp"

namespace mge::cpu {

struct ConvShape {
  int64_t images, channels, outputs, groups;
  Axis d, h, w;

  int64_t group_channels() const { return channels / groups; }
  int64_t group_outputs() const { return outputs / groups; }
  int64_t taps() const { return d.kernel * h.kernel * w.kernel; }
  int64_t pixels() const { return images * d.count * h.count * w.count; }
  bool pads() const { return d.padding || h.padding || w.padding; }
  // A matrix product: each output pixel meets one input pixel, and they lie one after the other.
  bool is_product() const {
    return taps() == 1 && !pads() && d.stride == 1 && h.stride == 1 && w.stride == 1;
  }
  int64_t packed_floats() const { return groups * round_up(group_outputs(), kBlock) * taps() * group_channels(); }
};

struct ConvData {
  const float *x, *packed;
  float* y;
  const float* bias;      // (optional) [o]
  const float* residual;  // (optional) as y
  Activation activation;
};

// Weights (o, c / groups, kd, kh, kw) into the packed form; `rotate` for the backward pass: inputs and outputs change
// places in each group, taps are reversed. Steps of a parallel_for over packed_blocks().
class WeightPacking {
 public:
  WeightPacking(int64_t outputs, int64_t group_inputs, int64_t taps, int64_t groups, bool rotate)
      : groups_(groups), taps_(taps), outputs_(outputs / groups), inputs_(group_inputs), rotate_(rotate) {}

  int64_t blocks() const { return groups_ * ceil_div(rows(), kBlock); }
  int64_t block_floats() const { return taps_ * terms() * kBlock; }

  void pack(const float* weight, int64_t block, float* packed) const {
    int64_t each = ceil_div(rows(), kBlock), group = block / each, first = block % each * kBlock;
    int64_t n = std::min<int64_t>(kBlock, rows() - first);
    // Steps from one packed output, and from one packed input, to the next.
    int64_t across = rotate_ ? taps_ : inputs_ * taps_, down = rotate_ ? inputs_ * taps_ : taps_;
    const float* from = weight + group * outputs_ * inputs_ * taps_ + first * across;
    float* to = packed + block * block_floats();
    for (int64_t t = 0; t < taps_; ++t)
      for (int64_t k = 0; k < terms(); ++k, to += kBlock) {
        const float* at = from + (rotate_ ? taps_ - 1 - t : t) + k * down;
        for (int64_t j = 0; j < n; ++j) to[j] = at[j * across];
        for (int64_t j = n; j < kBlock; ++j) to[j] = 0;
      }
  }

 private:
  int64_t rows() const { return rotate_ ? inputs_ : outputs_; }
  int64_t terms() const { return rotate_ ? outputs_ : inputs_; }
  int64_t groups_, taps_, outputs_, inputs_;
  bool rotate_;
};

class Conv {
 public:
  explicit Conv(const ConvShape& shape)
      : s_(shape), product_(shape.pixels(), shape.group_outputs(), shape.group_channels(), shape.groups) {
    constexpr int64_t kScratch = 64 * 1024;  // floats
    joined_ = s_.groups == 1 && s_.w.dilation == 1;
    wide_ = s_.w.length + (s_.pads() ? 2 * s_.w.padding : 0);
    // Rows of a unit: as many as the scratch memory takes, fewer where units are few.
    int64_t row_work = s_.w.count * s_.group_channels() * s_.taps() * s_.outputs;
    int64_t total = std::max<int64_t>(1, row_work * s_.images * s_.d.count * s_.h.count);
    int64_t units = std::clamp<int64_t>(total / Cut::kLeast, 1, Cut::kUnits);
    rows_ = std::max<int64_t>(1, s_.h.count);
    while (rows_ > 1 && s_.pads() && s_.d.kernel * input_rows(rows_) * wide_ * s_.channels > kScratch)
      rows_ = (rows_ + 1) / 2;
    while (rows_ > 4 && unit_count() < units) rows_ = (rows_ + 1) / 2;
    while (outputs_parts_ * kPanel < s_.outputs && s_.groups == 1 && unit_count() < units) outputs_parts_ *= 2;
    outputs_each_ = std::max<int64_t>(kPanel, s_.groups > 1 ? s_.outputs : round_up(ceil_div(s_.outputs, outputs_parts_), kPanel));
    outputs_parts_ = std::max<int64_t>(1, ceil_div(s_.outputs, outputs_each_));
    for (int64_t z = 0; z < s_.d.kernel; ++z)
      for (int64_t y = 0; y < s_.h.kernel; ++y)
        for (int64_t x = 0; x < (joined_ ? 1 : s_.w.kernel); ++x) {
          int64_t plane = s_.pads() ? z : z * s_.d.dilation;
          int64_t each = s_.pads() ? input_rows(rows_) : s_.h.length;
          taps_.push_back({((plane * each + y * s_.h.dilation) * wide_ + x * s_.w.dilation) * s_.channels,
                           ((z * s_.h.kernel + y) * s_.w.kernel + x) * s_.group_channels() * kBlock});
        }
  }

  int64_t scratch_floats() const {  // of each worker
    if (s_.is_product()) return round_up(product_.scratch_floats(), 16);
    return s_.pads() ? round_up(s_.d.kernel * input_rows(rows_) * wide_ * s_.channels, 16) : 0;
  }

  // `scratch`: scratch_floats() for each of the host's threads, aligned to 64 bytes.
  void run(const ConvData& data, float* scratch) const {
    if (!s_.pixels() || !s_.outputs) return;
    if (s_.is_product()) {
      parallel_for(product_.blocks() * s_.groups, 1, [&](int64_t begin, int64_t end, int32_t worker) {
        for (int64_t i = begin; i < end; ++i) multiply(data, i, scratch + worker * scratch_floats());
      });
      return;
    }
    parallel_for(unit_count(), 1, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i) unit(data, i, scratch + worker * scratch_floats());
    });
  }

 private:
  int64_t input_rows(int64_t rows) const { return (rows - 1) * s_.h.stride + (s_.h.kernel - 1) * s_.h.dilation + 1; }
  int64_t row_parts() const { return ceil_div(s_.h.count, rows_); }
  int64_t unit_count() const { return s_.images * s_.d.count * row_parts() * outputs_parts_; }

  void multiply(const ConvData& data, int64_t i, float* scratch) const {
    int64_t group = i / product_.blocks(), m = s_.pixels(), n = s_.group_outputs(), k = s_.group_channels();
    Product p{};
    p.m = m, p.n = n, p.k = k;
    p.a = {data.x + group * k, s_.channels, 1};
    p.packed = data.packed + group * round_up(n, kBlock) * k;
    p.y = data.y + group * n, p.y_row = s_.outputs;
    p.bias = data.bias ? data.bias + group * n : nullptr;
    p.residual = data.residual ? data.residual + group * n : nullptr, p.residual_row = s_.outputs;
    p.activation = data.activation;
    Block(p, product_, i % product_.blocks(), scratch);
  }

  void unit(const ConvData& data, int64_t i, float* scratch) const {
    const int64_t part = i % outputs_parts_;
    i /= outputs_parts_;
    const int64_t first = i % row_parts() * rows_, rows = std::min(rows_, s_.h.count - first);
    i /= row_parts();
    const int64_t z = i % s_.d.count, image = i / s_.d.count;
    const float* x = data.x + image * s_.d.length * s_.h.length * s_.w.length * s_.channels;
    if (s_.pads()) {
      copy_rows(x, z, first, rows, scratch);
      x = scratch;
    } else {
      x += (z * s_.d.stride * s_.h.length + first * s_.h.stride) * wide_ * s_.channels;
    }
    const int64_t y = ((image * s_.d.count + z) * s_.h.count + first) * s_.w.count;  // pixel
    Tile tile = plain_tile();
    tile.taps = taps_.data(), tile.tap_count = static_cast<int64_t>(taps_.size());
    tile.depth = s_.group_channels() * (joined_ ? s_.w.kernel : 1);
    tile.a_row = s_.w.stride * s_.channels, tile.y_row = tile.residual_row = s_.outputs;
    tile.clip = data.activation.clip, tile.low = data.activation.low, tile.high = data.activation.high;
    tile.b_block = s_.taps() * s_.group_channels() * kBlock;
    const int64_t n = s_.group_outputs(), group_floats = ceil_div(n, kBlock) * tile.b_block;
    for (int64_t g = 0; g < s_.groups; ++g) {
      int64_t begin = part * outputs_each_, end = s_.groups > 1 ? n : std::min(n, begin + outputs_each_);
      for (int64_t c = begin; c < end; c += kColumns) {
        tile.columns = std::min<int64_t>(kColumns, end - c);
        tile.b = data.packed + g * group_floats + c / kBlock * tile.b_block + c % kBlock;
        panel(data, tile, x + g * s_.group_channels(), y, rows, g * n + c);
      }
    }
  }

  // All pixels of a unit, for one panel of outputs.
  void panel(const ConvData& data, Tile& tile, const float* x, int64_t pixel, int64_t rows, int64_t output) const {
    tile.bias = data.bias ? data.bias + output : nullptr;
    const int64_t x_row = s_.h.stride * wide_ * s_.channels, w = s_.w.count;
    auto one = [&](const float* a, int64_t at, int64_t count) {
      tile.a = a;
      tile.y = data.y + at * s_.outputs + output;
      if (data.residual) tile.residual = data.residual + at * s_.outputs + output;
      run_tile(tile, count);
      if (data.activation.rows) data.activation.rows(tile.y, s_.outputs, count, tile.columns);
    };
    int64_t r = 0;
    if (w == kHalf && kRows == 2 * kHalf) {  // two short rows in one tile
      tile.a_jump = x_row;
      for (; r + 2 <= rows; r += 2) one(x + r * x_row, pixel + r * w, kRows);
    }
    tile.a_jump = kHalf * tile.a_row;
    for (const RowTiles tiles(w); r < rows; ++r)
      for (int64_t i = 0; i < tiles.count(); ++i) {
        RowRange p = tiles[i];
        one(x + r * x_row + p.begin * tile.a_row, pixel + r * w + p.begin, p.rows);
      }
  }

  // The input rows that output rows `first` and on meet, with zeros around them.
  void copy_rows(const float* x, int64_t z, int64_t first, int64_t rows, float* to) const {
    const int64_t row = wide_ * s_.channels, border = s_.w.padding * s_.channels;
    if (!row) return;
    for (int64_t k = 0; k < s_.d.kernel; ++k) {
      int64_t plane = z * s_.d.stride + k * s_.d.dilation - s_.d.padding;
      float* at = to + k * input_rows(rows_) * row;
      for (int64_t r = 0; r < input_rows(rows); ++r, at += row) {
        int64_t h = first * s_.h.stride + r - s_.h.padding;
        if (plane < 0 || plane >= s_.d.length || h < 0 || h >= s_.h.length) {
          std::memset(at, 0, 4 * row);
          continue;
        }
        std::memset(at, 0, 4 * border), std::memset(at + row - border, 0, 4 * border);
        std::memcpy(at + border, x + (plane * s_.h.length + h) * (row - 2 * border), 4 * (row - 2 * border));
      }
    }
  }

  ConvShape s_;
  Cut product_;
  int64_t rows_, wide_, outputs_parts_ = 1, outputs_each_ = 0;
  bool joined_;
  std::vector<Tap> taps_;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_CONV_HPP
