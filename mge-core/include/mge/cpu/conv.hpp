// mge/cpu/conv.hpp: convolution in NHWC from the microkernel, over one to three spatial axes.
//
// In: images (n, d, h, w, c), weights packed as [groups][o / groups / 16][kd][kh][kw][c / groups][16].
// Out: y = activation(conv + bias + residual), (n, d, h, w, o). After tile.hpp, taps.hpp, gemm.hpp.
//
// A kernel of size 1 is a matrix product. Any other is cut into units: some output rows of one image, some outputs.
// Where the image is padded, a unit first copies the input rows that it meets, with their borders, into scratch memory
// in the level-2 cache (about 1 % of its time), so that tiles know no borders. The taps of one kernel row lie together
// in NHWC and are one sum, unless groups or dilation part them.
//
// Weights beyond the level-2 cache come from memory, and should come once: then a unit is all rows of some images and
// one panel of outputs, and goes through the weights a few taps at a time. The units share one copy of the images.
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
  const float* residual;  // (optional) as y, may be y: each element is added before its place is written
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
    float* to = packed + block * block_floats();
    if (rotate_)
      pack_rotated(weight + (group * outputs_ * inputs_ + first) * taps_, n, to);
    else
      pack_outputs(weight + (group * outputs_ + first) * inputs_ * taps_, n, to);
  }

 private:
  void pack_outputs(const float* from, int64_t n, float* to) const {
    constexpr int64_t kRun = 64;
    const int64_t all = inputs_ * taps_;
    float part[kRun * kBlock] = {};
    for (int64_t first = 0, k = 0, t = 0; first < all; first += kRun) {
      const int64_t count = std::min(kRun, all - first);
      transpose_tile(from + first, all, part, kBlock, count, n);
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to + (t * inputs_ + k) * kBlock, part + i * kBlock, 4 * kBlock);
        if (++t == taps_) t = 0, ++k;
      }
    }
  }

  void pack_rotated(const float* from, int64_t n, float* to) const {
    for (int64_t k = 0; k < outputs_; ++k, from += inputs_ * taps_)
      for (int64_t t = 0; t < taps_; ++t) {
        float* at = to + ((taps_ - 1 - t) * outputs_ + k) * kBlock;
        for (int64_t j = 0; j < n; ++j) at[j] = from[j * taps_ + t];
        for (int64_t j = n; j < kBlock; ++j) at[j] = 0;
      }
  }

  int64_t rows() const { return rotate_ ? inputs_ : outputs_; }
  int64_t terms() const { return rotate_ ? outputs_ : inputs_; }
  int64_t groups_, taps_, outputs_, inputs_;
  bool rotate_;
};

class Conv {
 public:
  explicit Conv(const ConvShape& shape)
      : s_(shape), product_(shape.pixels(), shape.group_outputs(), shape.group_channels(), shape.groups),
        pitch_(shape.channels) {
    constexpr int64_t kScratch = 64 * 1024;  // floats
    gathers_ = s_.taps() == 1 && !s_.pads() && s_.groups == 1 && s_.outputs >= 8 * kPanel && !s_.is_product();
    const bool flat = s_.d.kernel == 1 && s_.d.count == 1 && s_.d.length == 1 && s_.taps() > 1 && s_.groups == 1;
    shared_ = flat && s_.outputs >= 8 * kPanel && s_.packed_floats() > kHeavy &&
              s_.images * padded_floats() <= kMostShared;
    // Pixels a multiple of 4 KiB apart fall into one set of the level-1 cache.
    if (gathers_ || (shared_ && s_.w.stride * pitch_ % 1024 == 0)) pitch_ += 16;
    joined_ = s_.groups == 1 && s_.w.dilation == 1 && pitch_ == s_.channels;
    wide_ = s_.w.length + (s_.pads() ? 2 * s_.w.padding : 0);
    rows_ = std::max<int64_t>(1, s_.h.count);
    if (shared_)
      share();
    else
      cut(kScratch);
    for (int64_t z = 0; z < s_.d.kernel; ++z)
      for (int64_t y = 0; y < s_.h.kernel; ++y)
        for (int64_t x = 0; x < (joined_ ? 1 : s_.w.kernel); ++x) {
          int64_t plane = s_.pads() ? z : z * s_.d.dilation;
          int64_t each = s_.pads() ? input_rows(rows_) : s_.h.length;
          taps_.push_back({((plane * each + y * s_.h.dilation) * wide_ + x * s_.w.dilation) * pitch_,
                           ((z * s_.h.kernel + y) * s_.w.kernel + x) * s_.group_channels() * kBlock});
        }
  }

  int64_t workspace_floats() const { return shared_floats() + worker_floats() * mge_host->thread_count; }

  // `workspace`: workspace_floats(), aligned to 64 bytes.
  void run(const ConvData& data, float* workspace) const {
    if (!s_.pixels() || !s_.outputs) return;
    float *copy = workspace, *own = workspace + shared_floats();  // of all workers, and of each
    if (gathers_ || shared_) {
      const int64_t rows = gathers_ ? s_.h.count : input_rows(rows_);
      const int64_t grain = ceil_div(1 << 14, std::max<int64_t>(1, wide_ * pitch_));
      parallel_for(s_.images * rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) gathers_ ? gather_row(data.x, i, copy) : pad_row(data.x, i, copy);
      });
    }
    if (gathers_ || s_.is_product()) {
      const float* x = gathers_ ? copy : data.x;
      parallel_for(product_.blocks() * s_.groups, 1, [&](int64_t begin, int64_t end, int32_t worker) {
        for (int64_t i = begin; i < end; ++i) multiply(data, x, i, own + worker * worker_floats());
      });
      return;
    }
    parallel_for(unit_count(), 1, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i)
        shared_ ? shared_unit(data, copy, i, worker) : unit(data, i, own + worker * worker_floats());
    });
  }

 private:
  static constexpr int64_t kHeavy = 256 * 1024;            // floats of weights that a level-2 cache does not hold
  static constexpr int64_t kMostShared = 4 * 1024 * 1024;  // floats of a copy of the images
  static constexpr int64_t kChunk = 1536;  // terms of a panel: they lie in the level-2 cache with the next

  int64_t input_rows(int64_t rows) const { return (rows - 1) * s_.h.stride + (s_.h.kernel - 1) * s_.h.dilation + 1; }
  int64_t row_parts() const { return ceil_div(s_.h.count, rows_); }
  int64_t unit_count() const {
    return (shared_ ? ceil_div(s_.images, images_each_) : s_.images) * s_.d.count * row_parts() * outputs_parts_;
  }
  int64_t padded_floats() const {  // of an image
    const int64_t rows = input_rows(std::max<int64_t>(1, s_.h.count));
    return round_up(rows * (s_.w.length + 2 * s_.w.padding) * (s_.channels + 16), 16);
  }
  int64_t shared_floats() const {
    return gathers_ ? round_up(s_.pixels() * pitch_, 16) : shared_ ? s_.images * padded_floats() : 0;
  }
  int64_t worker_floats() const {  // of each worker
    if (gathers_ || s_.is_product()) return round_up(product_.scratch_floats(), 16);
    return s_.pads() && !shared_ ? round_up(s_.d.kernel * input_rows(rows_) * wide_ * s_.channels, 16) : 0;
  }

  // Units of all rows, some images and one panel of outputs.
  void share() {
    constexpr int64_t kMostPixels = 1024;
    outputs_each_ = kPanel, outputs_parts_ = ceil_div(s_.outputs, kPanel);
    const int64_t pixels = std::max<int64_t>(1, s_.h.count * s_.w.count);
    images_each_ = std::clamp<int64_t>(kMostPixels / pixels, 1, std::max<int64_t>(1, s_.images));
    while (images_each_ > 1 && unit_count() < Cut::kUnits) images_each_ = (images_each_ + 1) / 2;
    const int64_t depth = s_.channels * (joined_ ? s_.w.kernel : 1), count = s_.taps() / (joined_ ? s_.w.kernel : 1);
    chunk_ = ceil_div(count, ceil_div(count * depth, kChunk));
    chunk_ = std::clamp<int64_t>(chunk_, 1, count);
  }

  // Rows of a unit: as many as the scratch memory takes, fewer where units are few.
  void cut(int64_t scratch) {
    int64_t row_work = s_.w.count * s_.group_channels() * s_.taps() * s_.outputs;
    int64_t total = std::max<int64_t>(1, row_work * s_.images * s_.d.count * s_.h.count);
    int64_t units = std::clamp<int64_t>(total / Cut::kLeast, 1, Cut::kUnits);
    while (rows_ > 1 && s_.pads() && s_.d.kernel * input_rows(rows_) * wide_ * s_.channels > scratch)
      rows_ = (rows_ + 1) / 2;
    while (rows_ > 4 && unit_count() < units) rows_ = (rows_ + 1) / 2;
    while (outputs_parts_ * kPanel < s_.outputs && s_.groups == 1 && unit_count() < units) outputs_parts_ *= 2;
    const int64_t each = s_.groups > 1 ? s_.outputs : round_up(ceil_div(s_.outputs, outputs_parts_), kPanel);
    outputs_each_ = std::max<int64_t>(kPanel, each);
    outputs_parts_ = std::max<int64_t>(1, ceil_div(s_.outputs, outputs_each_));
  }

  void multiply(const ConvData& data, const float* x, int64_t i, float* scratch) const {
    int64_t group = i / product_.blocks(), m = s_.pixels(), n = s_.group_outputs(), k = s_.group_channels();
    Product p{};
    p.m = m, p.n = n, p.k = k;
    p.a = {x + group * k, pitch_, 1};
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
    Tile tile = tile_of();
    tile.taps = taps_.data(), tile.tap_count = static_cast<int64_t>(taps_.size());
    const int64_t n = s_.group_outputs(), group_floats = ceil_div(n, kBlock) * tile.b_block;
    for (int64_t g = 0; g < s_.groups; ++g) {
      int64_t begin = part * outputs_each_, end = s_.groups > 1 ? n : std::min(n, begin + outputs_each_);
      for (int64_t c = begin; c < end; c += kColumns) {
        tile.columns = std::min<int64_t>(kColumns, end - c);
        tile.b = data.packed + g * group_floats + c / kBlock * tile.b_block + c % kBlock;
        Fetch none;
        panel(data, tile, x + g * s_.group_channels(), y, rows, g * n + c, none);
      }
    }
  }

  Tile tile_of() const {
    Tile tile = plain_tile();
    tile.depth = s_.group_channels() * (joined_ ? s_.w.kernel : 1);
    tile.a_row = s_.w.stride * pitch_, tile.y_row = tile.residual_row = s_.outputs;
    tile.b_block = s_.taps() * s_.group_channels() * kBlock;
    return tile;
  }

  void shared_unit(const ConvData& data, const float* x, int64_t i, int32_t worker) const {
    const int64_t groups = ceil_div(s_.images, images_each_), count = static_cast<int64_t>(taps_.size());
    const int64_t c = i / groups * kPanel, next = next_piece(i, worker), after = next / groups * kPanel;
    const int64_t first = i % groups * images_each_, end = std::min(s_.images, first + images_each_);
    const int64_t pixels = s_.h.count * s_.w.count;
    Tile tile = tile_of();
    for (int64_t t = 0; t < count; t += chunk_) {
      const bool last = t + chunk_ >= count;
      ConvData part = data;
      if (t) part.residual = nullptr;
      if (!last) part.bias = nullptr, part.activation = {};
      tile.taps = taps_.data() + t, tile.tap_count = std::min(chunk_, count - t), tile.add = t > 0;
      Fetch fetch{nullptr, tile.tap_count * tile.depth, 0, (end - first) * tiles_of(s_.h.count)};
      if (!last) fetch.next = data.packed + c / kBlock * tile.b_block + taps_[static_cast<size_t>(t + chunk_)].b;
      if (last && next >= 0 && after < s_.outputs) fetch.next = data.packed + after / kBlock * tile.b_block;
      for (int64_t image = first; image < end; ++image)
        for (int64_t at = c; at < std::min(s_.outputs, c + kPanel); at += kColumns) {
          tile.columns = std::min<int64_t>(kColumns, s_.outputs - at);
          tile.b = data.packed + at / kBlock * tile.b_block + at % kBlock;
          panel(part, tile, x + image * padded_floats(), image * pixels, s_.h.count, at, fetch);
        }
    }
  }

  // What the tiles of a panel bring closer: `terms` rows of the weights at `next`, a part with each of n tiles.
  struct Fetch {
    const float* next = nullptr;
    int64_t terms = 0, i = 0, n = 1;
  };

  int64_t tiles_of(int64_t rows) const {
    return s_.w.count == kHalf ? rows / 2 + rows % 2 : rows * tile_count(s_.w.count);
  }

  // All pixels of a unit, for one panel of outputs.
  void panel(const ConvData& data, Tile& tile, const float* x, int64_t pixel, int64_t rows, int64_t output,
             Fetch& fetch) const {
    tile.bias = data.bias ? data.bias + output : nullptr;
    tile.clip = data.activation.clip, tile.low = data.activation.low, tile.high = data.activation.high;
    const int64_t x_row = s_.h.stride * wide_ * pitch_, w = s_.w.count;
    auto one = [&](const float* a, int64_t at, int64_t count) {
      tile.a = a;
      tile.y = data.y + at * s_.outputs + output;
      tile.residual = data.residual ? data.residual + at * s_.outputs + output : nullptr;
      if (fetch.next) tile.fetch(fetch.next, fetch.terms, fetch.i++, fetch.n);
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

  // Row i of all padded images together.
  void pad_row(const float* x, int64_t i, float* padded) const {
    const int64_t rows = input_rows(rows_), image = i / rows, h = i % rows - s_.h.padding;
    float* to = padded + image * padded_floats() + i % rows * wide_ * pitch_;
    const bool inside = h >= 0 && h < s_.h.length;
    const int64_t border = inside ? s_.w.padding * pitch_ : wide_ * pitch_;
    std::memset(to, 0, 4 * border);
    if (!inside) return;
    copy_pixels(x + (image * s_.h.length + h) * s_.w.length * s_.channels, s_.channels, s_.w.length, to + border);
    std::memset(to + (wide_ - s_.w.padding) * pitch_, 0, 4 * border);
  }

  // The pixels that row i of all images' results meets, where the kernel has size 1.
  void gather_row(const float* x, int64_t i, float* gathered) const {
    const int64_t rows = s_.h.count, at = (i / rows * s_.h.length + i % rows * s_.h.stride) * s_.w.length;
    copy_pixels(x + at * s_.channels, s_.w.stride * s_.channels, s_.w.count, gathered + i * s_.w.count * pitch_);
  }

  void copy_pixels(const float* from, int64_t step, int64_t count, float* to) const {
    if (step == pitch_) return void(std::memcpy(to, from, 4 * count * pitch_));
    for (int64_t j = 0; j < count; ++j) std::memcpy(to + j * pitch_, from + j * step, 4 * s_.channels);
  }

  ConvShape s_;
  Cut product_;
  int64_t pitch_;  // floats from a pixel to the next
  int64_t rows_, wide_, outputs_parts_ = 1, outputs_each_ = 0, images_each_ = 1, chunk_ = 0;
  bool gathers_, shared_, joined_;
  std::vector<Tap> taps_;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_CONV_HPP
