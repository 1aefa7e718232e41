// mge/cpu/winograd.hpp: 3x3 convolution of stride 1 by Winograd's F(2, 3) and F(4, 3), NHWC.
//
// In: images (n, h, w, c), weights packed as [o / 16][(m + 2)^2][c][16], transformed (WinogradPacking).
// Out: y = activation(conv + bias + residual). After conv.hpp, whose ConvShape and ConvData it takes.
//
// Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, arXiv:1509.09308: an output tile of m x m
// pixels is A^T [sum over c of (G g G^T) * (B^T d B)] A. The sums over c are (m + 2)^2 matrix products of tiles and
// channels, with (m + 2)^2 / (9 m^2) of the multiplications: 1 / 2.25 for m = 2, 1 / 4 for m = 4.
//
// Some tiles are transformed at a time, for the products of one panel of outputs after the other. Where the weights fit
// the second-level cache, each thread does that by itself; else threads share a larger set of tiles, so that weights,
// which then come from memory, are read less often. Weights that are not packed are transformed on the way, a panel of
// outputs at a time; then all tiles are one set.
#ifndef MGE_CPU_WINOGRAD_HPP
#define MGE_CPU_WINOGRAD_HPP

#include <algorithm>
#include <optional>

#include "mge/cpu/conv.hpp"

namespace mge::cpu {

// The one-dimensional transforms: B^T d, A^T y and G g.
template <int M>
struct WinogradTransform;

template <>
struct WinogradTransform<2> {
  static MGE_INLINE void input(const vf* d, vf* t) {
    t[0] = d[0] - d[2], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[1] - d[3];
  }
  static MGE_INLINE void output(const vf* t, vf* y) { y[0] = t[0] + (t[1] + t[2]), y[1] = (t[1] - t[2]) - t[3]; }
  static MGE_INLINE void weight(const vf* g, vf* u) {
    vf ends = 0.5f * (g[0] + g[2]), middle = 0.5f * g[1];
    u[0] = g[0], u[1] = ends + middle, u[2] = ends - middle, u[3] = g[2];
  }
};

// F(4, 3) interpolates at 0, +-a, +-b and infinity. These points give a sixth of the largest error, and less than half
// of the root mean square error, of the usual +-1 and +-2 (64 channels; the best of 80 pairs tried).
template <>
struct WinogradTransform<4> {
  static constexpr float a = 11.0f / 16, b = 1.5f, a2 = a * a, b2 = b * b;  // and their products: exact

  static MGE_INLINE void input(const vf* d, vf* t) {
    const vf sum = splat(a2 + b2), product = splat(a2 * b2);
    vf even_a = fma(splat(-b2), d[2], d[4]), odd_a = fma(splat(-b2), d[1], d[3]);
    vf even_b = fma(splat(-a2), d[2], d[4]), odd_b = fma(splat(-a2), d[1], d[3]);
    t[0] = fma(product, d[0], fma(-sum, d[2], d[4]));
    t[1] = fma(splat(a), odd_a, even_a), t[2] = fma(splat(-a), odd_a, even_a);
    t[3] = fma(splat(b), odd_b, even_b), t[4] = fma(splat(-b), odd_b, even_b);
    t[5] = fma(product, d[1], fma(-sum, d[3], d[5]));
  }
  static MGE_INLINE void output(const vf* t, vf* y) {
    vf sum_a = t[1] + t[2], odd_a = a * (t[1] - t[2]), sum_b = t[3] + t[4], odd_b = b * (t[3] - t[4]);
    y[0] = (t[0] + sum_a) + sum_b, y[1] = odd_a + odd_b;
    y[2] = fma(splat(b2), sum_b, a2 * sum_a), y[3] = fma(splat(b2), odd_b, fma(splat(a2), odd_a, t[5]));
  }
  static MGE_INLINE void weight(const vf* g, vf* u) {
    constexpr double wide_a = a2, wide_b = b2;  // squares
    constexpr double of_a = 1 / (2 * wide_a * (wide_a - wide_b)), of_b = 1 / (2 * wide_b * (wide_b - wide_a));
    auto pair = [&](double scale, double point, vf* to) {
      vf even = fma(splat(static_cast<float>(scale * point * point)), g[2], static_cast<float>(scale) * g[0]);
      vf odd = static_cast<float>(scale * point) * g[1];
      to[0] = even + odd, to[1] = even - odd;
    };
    u[0] = static_cast<float>(1 / (wide_a * wide_b)) * g[0], u[5] = g[2];
    pair(of_a, a, u + 1), pair(of_b, b, u + 3);
  }
};

// Weights (o, c, 3, 3) into the packed form, in blocks of outputs; `rotate` as in WeightPacking.
template <int M>
class WinogradPacking {
 public:
  WinogradPacking(int64_t outputs, int64_t inputs, bool rotate) : outputs(outputs), inputs(inputs), rotate(rotate) {}

  int64_t rows() const { return rotate ? inputs : outputs; }
  int64_t terms() const { return rotate ? outputs : inputs; }
  int64_t blocks() const { return ceil_div(rows(), kBlock); }

  int64_t block_floats() const { return kPlanes * terms() * kBlock; }

  void pack(const float* weight, int64_t block, float* to) const {
    const int64_t n = std::min<int64_t>(kBlock, rows() - block * kBlock), k = terms();
    // Inputs at once: the planes lie so far apart that their single lines would fall into one set of a cache.
    constexpr int64_t kTogether = 8;
    float some[kTogether * 9 * kBlock] = {}, made[A * A][kTogether * kBlock];
    for (int64_t first = 0; first < k; first += kTogether) {
      const int64_t count = std::min(kTogether, k - first);
      if (rotate)
        gather(weight + (first * inputs + block * kBlock) * 9, n, count, some);
      else
        transpose_tile(weight + (block * kBlock * inputs + first) * 9, inputs * 9, some, kBlock, count * 9, n);
      for (int64_t at = 0; at < count * kBlock; at += kWidth) {
        const float* taps = some + at / kBlock * 9 * kBlock + at % kBlock;
        vf rows_of[A][3], u[A];
        for (int x = 0; x < 3; ++x) {
          vf g[3] = {load(taps + x * kBlock), load(taps + (3 + x) * kBlock), load(taps + (6 + x) * kBlock)};
          WinogradTransform<M>::weight(g, u);
          for (int y = 0; y < A; ++y) rows_of[y][x] = u[y];
        }
        for (int y = 0; y < A; ++y) {
          WinogradTransform<M>::weight(rows_of[y], u);
          for (int x = 0; x < A; ++x) store(made[y * A + x] + at, u[x]);
        }
      }
      for (int p = 0; p < A * A; ++p) std::memcpy(to + (p * k + first) * kBlock, made[p], 4 * count * kBlock);
    }
  }

 private:
  static constexpr int A = M + 2, kPlanes = A * A;

  // The taps of n inputs and `count` outputs, reversed, as [count][9][16].
  void gather(const float* from, int64_t n, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; ++i, from += inputs * 9, to += 9 * kBlock)
      for (int64_t o = 0; o < n; ++o)
        for (int t = 0; t < 9; ++t) to[(8 - t) * kBlock + o] = from[o * 9 + t];
  }

  int64_t outputs, inputs;
  bool rotate;
};

template <int M>
class Winograd {
 public:
  // With `packing` the weights come as they are.
  explicit Winograd(const ConvShape& s, std::optional<WinogradPacking<M>> packing = {}) : s_(s), packing_(packing) {
    down_ = ceil_div(s.h.count, M), across_ = ceil_div(s.w.count, M);
    tiles_ = s.images * down_ * across_;
    c_row_ = round_up(s.channels, 16) + 16;  // not a power of two: rows lie in different sets of the cache
    const int64_t some = std::max<int64_t>(1, tiles_), panels = std::max<int64_t>(1, ceil_div(s.outputs, kColumns));
    own_ = kPlanes * s.channels * s.outputs <= kOwnWeights && tiles_ >= 2 * kRows;
    int64_t sets = ceil_div(some, own_ ? 2 * kRows : 4 * kRows);
    if (own_) sets = round_up(std::max(sets, std::min<int64_t>(kUnits, ceil_div(some, kRows))), 2);
    set_ = ceil_div(some, sets);
    block_ = own_ || panels >= 4 ? set_ : ceil_div(set_, 2);
    if (packing_) own_ = false, set_ = some, block_ = ceil_div(some, ceil_div(some, 4 * kRows));
  }

  uint64_t workspace_floats() const {
    const int64_t workers = mge_host->thread_count;
    return workers * (products_floats() + panel_floats()) + (own_ ? workers : 1) * inputs_floats();
  }

  void run(const ConvData& data, float* workspace) const {
    float* products = workspace + (own_ ? mge_host->thread_count : 1) * inputs_floats();
    if (packing_) return run_unpacked(data, workspace, products);
    if (own_) {
      parallel_for(ceil_div(tiles_, set_), 1, [&](int64_t begin, int64_t end, int32_t worker) {
        float *inputs = workspace + worker * inputs_floats(), *mine = products + worker * products_floats();
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i * set_, count = std::min(set_, tiles_ - first);
          transform(data.x, inputs, first, 0, count);
          for (int64_t c = 0; c < s_.outputs; c += kColumns)
            multiply(data, columns(data.packed, c), columns(data.packed, c + kColumns), inputs, mine, c, first, 0,
                     count);
        }
      });
      return;
    }
    const bool small = s_.pixels() * s_.channels * s_.outputs * 9 < Cut::kLeast;
    for (int64_t first = 0; first < tiles_; first += set_) {
      const int64_t count = std::min(set_, tiles_ - first), blocks = ceil_div(count, block_);
      const int64_t panels = ceil_div(s_.outputs, kColumns);
      parallel_for(count, small ? count : ceil_div(count, kUnits), [&](int64_t begin, int64_t end) {
        transform(data.x, workspace, first, begin, end);
      });
      parallel_for(panels * blocks, small ? panels * blocks : ceil_div(panels * blocks, 4 * kUnits),
                   [&](int64_t begin, int64_t end, int32_t worker) {
                     float* mine = products + worker * products_floats();
                     for (int64_t i = begin; i < end; ++i) {
                       const int64_t c = i / blocks * kColumns, after = next_piece(i / blocks, worker) * kColumns;
                       multiply(data, columns(data.packed, c), columns(data.packed, after), workspace, mine, c, first,
                                count * (i % blocks) / blocks, count * (i % blocks + 1) / blocks);
                     }
                   });
    }
  }

 private:
  static constexpr int A = M + 2;
  static constexpr int64_t kPlanes = A * A;
  static constexpr int64_t kOwnWeights = 192 * 1024;  // floats that the second-level cache holds, beside a set
  static constexpr int64_t kUnits = 8;
  static constexpr int64_t kPanel = std::max<int64_t>(kColumns, kBlock);

  int64_t panel_floats() const { return packing_ ? kPanel / kBlock * packing_->block_floats() : 0; }
  int64_t inputs_floats() const { return kPlanes * set_ * c_row_; }
  int64_t products_floats() const { return kPlanes * block_ * kColumns; }

  void run_unpacked(const ConvData& data, float* workspace, float* products) const {
    float* panels = products + mge_host->thread_count * products_floats();
    parallel_for(tiles_, ceil_div(set_, kUnits),
                 [&](int64_t begin, int64_t end) { transform(data.x, workspace, 0, begin, end); });
    parallel_for(ceil_div(s_.outputs, kPanel), 1, [&](int64_t begin, int64_t end, int32_t worker) {
      float *mine = products + worker * products_floats(), *panel = panels + worker * panel_floats();
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i * kPanel, last = std::min(s_.outputs, first + kPanel);
        for (int64_t c = first; c < last; c += kBlock)
          packing_->pack(data.packed, c / kBlock, panel + (c - first) / kBlock * packing_->block_floats());
        for (int64_t t = 0; t < tiles_; t += block_)
          for (int64_t c = first; c < last; c += kColumns)
            multiply(data, columns(panel, c - first), nullptr, workspace, mine, c, 0, t, std::min(tiles_, t + block_));
      }
    });
  }

  // Where the packed weights of the outputs from `c` on begin; NULL where there are none.
  const float* columns(const float* packed, int64_t c) const {
    if (c < 0 || c >= s_.outputs) return nullptr;
    return packed + c / kBlock * kPlanes * s_.channels * kBlock + c % kBlock;
  }

  struct Place {
    int64_t image, y, x;  // of the first output pixel
  };
  Place place(int64_t tile) const {
    const int64_t row = tile / across_, image = row / down_;
    return {image, (row - image * down_) * M, (tile - row * across_) * M};
  }

  // Tiles first + begin to first + end - 1 into inputs[plane][begin ..][c_row_].
  void transform(const float* x, float* inputs, int64_t first, int64_t begin, int64_t end) const {
    const int64_t plane = set_ * c_row_, c = s_.channels, x_row = s_.w.length * c;
    for (int64_t t = begin; t < end; ++t) {
      const Place at = place(first + t);
      const int64_t y0 = at.y - s_.h.padding, x0 = at.x - s_.w.padding;
      const float* from = x + ((at.image * s_.h.length + y0) * s_.w.length + x0) * c;
      const Edges edges{std::max<int64_t>(0, -y0), std::min<int64_t>(A, s_.h.length - y0), std::max<int64_t>(0, -x0),
                        std::min<int64_t>(A, s_.w.length - x0)};
      const bool inside = edges.top == 0 && edges.bottom == A && edges.left == 0 && edges.right == A;
      float* to = inputs + t * c_row_;
      int64_t k = 0;
      if (inside)
        for (; k + kWidth <= c; k += kWidth) transform_vector<true, true>(from + k, x_row, edges, to + k, plane, kWidth);
      else
        for (; k + kWidth <= c; k += kWidth) transform_vector<true, false>(from + k, x_row, edges, to + k, plane, kWidth);
      if (k < c) transform_vector<false, false>(from + k, x_row, edges, to + k, plane, c - k);
    }
  }

  struct Edges {
    int64_t top, bottom, left, right;  // of the tile's inputs, those inside the image
  };

  template <bool Whole, bool Inside>
  void transform_vector(const float* from, int64_t x_row, const Edges& edges, float* to, int64_t plane,
                        int64_t lanes) const {
    const int64_t c = s_.channels;
    vf middle[A][A];
    MGE_UNROLL
    for (int x = 0; x < A; ++x) {
      vf d[A], t[A];
      const bool column = Inside || (x >= edges.left && x < edges.right);
      MGE_UNROLL
      for (int y = 0; y < A; ++y) {
        const float* at = from + y * x_row + x * c;
        d[y] = vf{};
        if (Inside || (column && y >= edges.top && y < edges.bottom)) d[y] = Whole ? load(at) : load_n(at, lanes);
      }
      WinogradTransform<M>::input(d, t);
      MGE_UNROLL
      for (int y = 0; y < A; ++y) middle[y][x] = t[y];
    }
    MGE_UNROLL
    for (int y = 0; y < A; ++y) {
      vf t[A];
      WinogradTransform<M>::input(middle[y], t);
      MGE_UNROLL
      for (int x = 0; x < A; ++x) store(to + (y * A + x) * plane, t[x]);
    }
  }

  // The products and the outputs from `c` on, of tiles first + begin to first + end - 1, by the packed weights `b`.
  // `after`: those that this worker may take next, or NULL.
  void multiply(const ConvData& data, const float* b, const float* after, const float* inputs, float* products,
                int64_t c, int64_t first, int64_t begin, int64_t end) const {
    const int64_t plane = set_ * c_row_, count = end - begin, products_plane = count * kColumns;
    Tile tile = plain_tile();
    tile.depth = s_.channels, tile.a_row = c_row_, tile.a_jump = kHalf * c_row_;
    tile.b_block = kPlanes * s_.channels * kBlock, tile.y_row = kColumns;
    tile.columns = kColumns;
    const int64_t columns = std::min<int64_t>(kColumns, s_.outputs - c);
    if (columns <= kWidth) tile.columns = kWidth;
    const RowTiles tiles(count);
    for (int64_t p = 0; p < kPlanes; ++p) {
      tile.b = b + p * s_.channels * kBlock;
      const bool last = p + 1 == kPlanes;
      for (int64_t t = p; t < count; t += kPlanes) fetch_outputs(data, first + begin + t, c);
      for (int64_t i = 0; i < tiles.count(); ++i) {
        const RowRange rows = tiles[i];
        const float* next = last ? after : tile.b + s_.channels * kBlock;
        tile.ahead_terms = 0;
        if (next) tile.fetch(next, s_.channels, i, tiles.count());
        tile.a = inputs + p * plane + (begin + rows.begin) * c_row_;
        tile.y = products + p * products_plane + rows.begin * kColumns;
        run_tile(tile, rows.rows);
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      const Place at = place(first + begin + t);
      const int64_t pixel = (at.image * s_.h.count + at.y) * s_.w.count + at.x;
      const int64_t rows = std::min<int64_t>(M, s_.h.count - at.y), cols = std::min<int64_t>(M, s_.w.count - at.x);
      for (int64_t k = 0; k < columns; k += kWidth) {
        const int64_t lanes = std::min<int64_t>(kWidth, columns - k);
        const float* from = products + t * kColumns + k;
        const int64_t to = pixel * s_.outputs + c + k;
        if (lanes == kWidth && rows == M && cols == M)
          finish<true>(data, from, products_plane, to, c + k, lanes, M, M);
        else
          finish<false>(data, from, products_plane, to, c + k, lanes, rows, cols);
      }
      if (data.activation.rows)
        for (int64_t r = 0; r < rows; ++r)
          data.activation.rows(data.y + (pixel + r * s_.w.count) * s_.outputs + c, s_.outputs, cols, columns);
    }
  }

  // Brings closer what the outputs of a tile, kColumns of them, will be added to and written over.
  void fetch_outputs(const ConvData& data, int64_t tile, int64_t c) const {
    const Place at = place(tile);
    for (int64_t y = at.y; y < std::min(at.y + M, s_.h.count); ++y)
      for (int64_t x = at.x; x < std::min(at.x + M, s_.w.count); ++x)
        for (int64_t k = c; k < std::min(c + kColumns, s_.outputs); k += 16) {
          const int64_t to = ((at.image * s_.h.count + y) * s_.w.count + x) * s_.outputs + k;
          __builtin_prefetch(data.y + to, 1);
          if (data.residual) __builtin_prefetch(data.residual + to);
        }
  }

  template <bool Whole>
  void finish(const ConvData& data, const float* from, int64_t plane, int64_t to, int64_t c, int64_t lanes,
              int64_t rows, int64_t cols) const {
    vf middle[M][A];
    MGE_UNROLL
    for (int x = 0; x < A; ++x) {
      vf t[A], y[M];
      MGE_UNROLL
      for (int i = 0; i < A; ++i) t[i] = load(from + (i * A + x) * plane);
      WinogradTransform<M>::output(t, y);
      MGE_UNROLL
      for (int i = 0; i < M; ++i) middle[i][x] = y[i];
    }
    const vf bias = !data.bias ? vf{} : Whole ? load(data.bias + c) : load_n(data.bias + c, lanes);
    const vf low = splat(data.activation.low), high = splat(data.activation.high);
    MGE_UNROLL
    for (int i = 0; i < M; ++i) {
      vf y[M];
      WinogradTransform<M>::output(middle[i], y);
      MGE_UNROLL
      for (int j = 0; j < M; ++j)
        if (Whole || (i < rows && j < cols)) {
          const int64_t at = to + (i * s_.w.count + j) * s_.outputs;
          vf sum = y[j] + bias;
          if (data.residual) sum += Whole ? load(data.residual + at) : load_n(data.residual + at, lanes);
          if (data.activation.clip) sum = min(high, max(low, sum));  // in this order NaN stays
          Whole ? store(data.y + at, sum) : store_n(data.y + at, sum, lanes);
        }
    }
  }

  ConvShape s_;
  std::optional<WinogradPacking<M>> packing_;
  int64_t down_, across_, tiles_;  // tiles of an image, and all
  int64_t c_row_;                  // floats of a transformed input of a tile
  int64_t set_;                    // tiles that are transformed before the products
  int64_t block_;                  // of them, those whose products are made before they become outputs
  bool own_;                       // each thread has a set of its own
};

}  // namespace mge::cpu

#endif  // MGE_CPU_WINOGRAD_HPP
