// mge/cpu/conv_weight.hpp: the gradient of a convolution in its weight, over one to three spatial axes.
//
// In: x (n, d, h, w, c) and dy (n, od, oh, ow, o). Out: dw (o, c / groups, kd, kh, kw). After conv.hpp.
//
// For each tap, a product of x transposed and dy, whose sum goes over the pixels: both are read where they lie, without
// a matrix of windows. Blocks of rows are added to sums [o / kColumns][taps][c][kColumns]; of a kernel of size 1, where dy
// is the left side, to sums that lie as dw. Parts of the rows have sums of their own, which are added in their order:
// the threads change nothing.
#ifndef MGE_CPU_CONV_WEIGHT_HPP
#define MGE_CPU_CONV_WEIGHT_HPP

#include <algorithm>
#include <vector>

#include "mge/cpu/conv.hpp"

namespace mge::cpu {

class ConvWeight {
 public:
  explicit ConvWeight(const ConvShape& s)
      : s_(s), h_(s.h), w_(s.w), c_(s.channels), o_(s.outputs), in_(s.group_channels()), out_(s.group_outputs()),
        taps_(s.taps()), rows_(s.images * s.d.count * s.h.count), pointwise_(taps_ == 1),
        columns_(pointwise_ ? in_ : out_), panels_(ceil_div(columns_, kColumns)) {
    // Few channels: the taps of a kernel row, which lie together, are rows of one tile. x gets its padding for that.
    merged_ = in_ < kHalf && w_.kernel > 1 && w_.dilation == 1;
    // Long rows of channels meet in few sets of the caches: fewer pixels then.
    const int64_t pixels = pointwise_ ? std::clamp<int64_t>(kPixels * 256 / std::max<int64_t>(1, o_), 128, kPixels) : kPixels;
    block_ = std::max<int64_t>(1, pixels / std::max<int64_t>(1, w_.count));
    sums_ = pointwise_ ? o_ * in_ : s.groups * panels_ * taps_ * in_ * kColumns;
    items_ = s.groups * panels_;
    parts_ = std::max<int64_t>(
        1, std::min({kItems / std::max<int64_t>(1, items_), rows_ / block_, kPartFloats / std::max<int64_t>(1, sums_)}));
    part_rows_ = ceil_div(rows_, parts_);
    padded_ = merged_ ? (w_.length + 2 * w_.padding) * in_ : 0;
    // Where a panel is no whole number of vectors, or x needs its padding: copies, for each worker.
    scratch_ = round_up(block_ * w_.count * kColumns + (merged_ ? block_ * padded_ + kRows : 0), 16);
  }

  int64_t workspace_floats() const { return parts_ * sums_ + mge_host->thread_count * scratch_; }

  void run(const float* x, const float* dy, float* dw, float* workspace) const {
    const bool small = s_.pixels() * o_ * in_ * taps_ < Cut::kLeast;  // a second thread does not pay
    float* sums = pointwise_ && parts_ == 1 ? dw : workspace;
    parallel_for(parts_ * items_, small ? parts_ * items_ : 1, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i / items_, item = i % items_;
        float* scratch = workspace + parts_ * sums_ + worker * scratch_;
        add_part(x, dy, sums + part * sums_, scratch, part, item);
      }
    });
    if (pointwise_ && parts_ > 1)
      parallel_for(sums_, small ? sums_ : kAddGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float total = sums[i];
          for (int64_t part = 1; part < parts_; ++part) total += sums[part * sums_ + i];
          dw[i] = total;
        }
      });
    if (!pointwise_)
      parallel_for(s_.groups * panels_, small ? s_.groups * panels_ : 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) write(sums, dw, i / panels_, i % panels_);
      });
  }

 private:
  static constexpr int64_t kPixels = 640, kItems = 16, kPartFloats = 1 << 19, kAddGrain = 1 << 15;

  // The sums of some rows, for one panel of a group.
  void add_part(const float* x, const float* dy, float* sums, float* scratch, int64_t part, int64_t item) const {
    const int64_t group = item / panels_, panel = item % panels_;
    const int64_t begin = part * part_rows_, end = std::min(rows_, begin + part_rows_);
    std::vector<Tap> taps(static_cast<size_t>(block_));
    if (pointwise_) {
      const int64_t columns = std::min<int64_t>(kColumns, in_ - panel * kColumns);
      for (int64_t k = 0; k < out_; ++k)
        std::fill_n(sums + (group * out_ + k) * in_ + panel * kColumns, columns, 0.0f);
      for (int64_t row = begin; row < end; row += block_)
        add_pointwise(x, dy, sums, scratch, taps.data(), group, panel, {row, std::min(end, row + block_), 0, 0});
      return;
    }
    const int64_t size = taps_ * in_ * kColumns;
    float* mine = sums + item * size;
    std::fill_n(mine, size, 0.0f);
    for (int64_t row = begin; row < end; row += block_)
      add_block(x, dy, mine, scratch, taps.data(), group, panel, row, std::min(end, row + block_));
  }

  struct Rows {
    int64_t begin, end, kz, ky;
  };

  void add_pointwise(const float* x, const float* dy, float* sums, float* scratch, Tap* taps, int64_t group,
                     int64_t panel, const Rows& rows) const {
    const Taps cols = forward_taps(w_);
    const Taps::Range inside = cols.whole();
    if (inside.begin >= inside.end) return;
    Tile tile = plain_tile();
    tile.columns = std::min<int64_t>(kColumns, in_ - panel * kColumns);
    tile.taps = taps, tile.add = true, tile.y_row = in_, tile.depth = inside.end - inside.begin;
    tile.a_step = o_, tile.b_step = w_.stride * c_;
    // Whole vectors are read; and what many tiles read lies better together.
    const bool copied = tile.columns % kWidth || out_ >= 8 * kRows;
    const float* from = x + (cols.in + inside.begin * w_.stride) * c_ + group * in_ + panel * kColumns;
    tile.tap_count = for_rows(rows, [&, at = taps](int64_t i, int64_t y) mutable {
      const int64_t row = y * w_.length * c_;
      *at++ = {((rows.begin + i) * w_.count + inside.begin) * o_, copied ? i * tile.depth * kColumns : row};
      if (copied)
        for (int64_t p = 0; p < tile.depth; ++p)
          std::copy_n(from + row + p * tile.b_step, tile.columns, scratch + (i * tile.depth + p) * kColumns);
    });
    if (copied) tile.b_step = kColumns;
    multiply(tile, dy + group * out_, copied ? scratch : from, sums + group * out_ * in_ + panel * kColumns, out_);
  }

  void add_block(const float* x, const float* dy, float* sums, float* scratch, Tap* taps, int64_t group,
                 int64_t panel, int64_t begin, int64_t end) const {
    Tile tile = plain_tile();
    tile.columns = std::min<int64_t>(kColumns, out_ - panel * kColumns);
    tile.taps = taps, tile.add = true, tile.y_row = kColumns;
    int64_t row_step = w_.count * o_;
    const float* g = dy + begin * row_step + group * out_ + panel * kColumns;
    tile.b_step = o_;
    if (tile.columns % kWidth) {  // whole vectors are read
      for (int64_t p = 0; p < (end - begin) * w_.count; ++p)
        std::copy_n(g + p * o_, tile.columns, scratch + p * kColumns);
      g = scratch, tile.b_step = kColumns, row_step = w_.count * kColumns;
    }
    for (int64_t k = 0; k < s_.d.kernel * h_.kernel; ++k, sums += w_.kernel * in_ * kColumns) {
      const Rows rows{begin, end, k / h_.kernel, k % h_.kernel};
      if (merged_) {
        float* copy = scratch + block_ * w_.count * kColumns;
        tile.tap_count = for_rows(rows, [&, at = taps](int64_t i, int64_t y) mutable {
          pad(x + y * w_.length * c_ + group * in_, copy + i * padded_);
          *at++ = {i * padded_, i * row_step};
        });
        tile.a_step = w_.stride * in_, tile.depth = w_.count;
        multiply(tile, copy, g, sums, w_.kernel * in_);
        continue;
      }
      for (int64_t kx = 0; kx < w_.kernel; ++kx) {
        Taps one = forward_taps(w_);  // of the row's taps, kx alone
        one.in += kx * w_.dilation, one.taps = 1;
        const Taps::Range inside = one.whole();
        if (inside.begin >= inside.end) continue;
        const int64_t column = one.in + inside.begin * w_.stride;
        tile.tap_count = for_rows(rows, [&, at = taps](int64_t i, int64_t y) mutable {
          *at++ = {(y * w_.length + column) * c_, i * row_step + inside.begin * tile.b_step};
        });
        tile.a_step = w_.stride * c_, tile.depth = inside.end - inside.begin;
        multiply(tile, x + group * in_, g, sums + kx * in_ * kColumns, in_);
      }
    }
  }

  static void multiply(Tile& tile, const float* a, const float* b, float* y, int64_t count) {
    tile.b = b;
    for (int64_t i = 0; i < tile_count(count); ++i) {
      const RowRange rows = tile_rows(count, i);
      tile.a = a + rows.begin, tile.y = y + rows.begin * tile.y_row;
      run_tile<Left::kColumns, Right::kRows>(tile, rows.rows);
    }
  }

  // body(number, row of x) for the rows of dy whose taps kz, ky meet a row of x, counted over all images and planes;
  // returns how many do.
  template <class Body>
  int64_t for_rows(const Rows& rows, Body body) const {
    int64_t count = 0;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t plane = row / h_.count, image = plane / s_.d.count;
      const int64_t z = (plane - image * s_.d.count) * s_.d.stride + rows.kz * s_.d.dilation - s_.d.padding;
      const int64_t y = (row - plane * h_.count) * h_.stride + rows.ky * h_.dilation - h_.padding;
      if (z < 0 || z >= s_.d.length || y < 0 || y >= h_.length) continue;
      body(row - rows.begin, (image * s_.d.length + z) * h_.length + y);
      ++count;
    }
    return count;
  }

  void pad(const float* x, float* row) const {
    row = std::fill_n(row, w_.padding * in_, 0.0f);
    if (in_ == c_) {
      row = std::copy_n(x, w_.length * c_, row);
    } else {
      for (int64_t i = 0; i < w_.length; ++i, x += c_) row = std::copy_n(x, in_, row);
    }
    std::fill_n(row, w_.padding * in_, 0.0f);
  }

  // Adds the parts of a panel, and lays them out (o, c, kh, kw).
  void write(const float* sums, float* dw, int64_t group, int64_t panel) const {
    const int64_t columns = std::min<int64_t>(kColumns, out_ - panel * kColumns), row = in_ * taps_;
    constexpr int64_t kTogether = 8;
    std::vector<float> turned(static_cast<size_t>(kColumns * kTogether * taps_));
    for (int64_t c = 0; c < in_; c += kTogether) {
      const int64_t count = std::min(kTogether, in_ - c), length = count * taps_;
      for (int64_t tap = 0; tap < taps_; ++tap)
        for (int64_t i = 0; i < count; ++i) {
          const float* from = sums + (((group * panels_ + panel) * taps_ + tap) * in_ + c + i) * kColumns;
          float total[kColumns];
          std::copy_n(from, kColumns, total);
          for (int64_t part = 1; part < parts_; ++part)
            for (int64_t k = 0; k < kColumns; ++k) total[k] += from[part * sums_ + k];
          for (int64_t k = 0; k < columns; ++k) turned[static_cast<size_t>(k * length + i * taps_ + tap)] = total[k];
        }
      for (int64_t k = 0; k < columns; ++k)
        std::copy_n(turned.data() + k * length, length, dw + (group * out_ + panel * kColumns + k) * row + c * taps_);
    }
  }

  ConvShape s_;
  Axis h_, w_;
  int64_t c_, o_;
  int64_t in_, out_;  // channels and outputs of a group
  int64_t taps_;
  int64_t rows_;      // of dy, in all images
  bool pointwise_;
  int64_t columns_, panels_;  // of the right side: outputs; where pointwise, channels
  bool merged_;
  int64_t block_;         // rows of dy that are added at a time
  int64_t sums_;          // floats of all sums
  int64_t items_;         // of a part: groups and panels
  int64_t parts_, part_rows_;
  int64_t padded_;        // floats of a padded row
  int64_t scratch_;       // floats an item
};

}  // namespace mge::cpu

#endif  // MGE_CPU_CONV_WEIGHT_HPP
