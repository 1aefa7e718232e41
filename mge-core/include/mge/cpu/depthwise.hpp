// mge/cpu/depthwise.hpp: convolution of each channel by itself, in NHWC, and its two gradients.
//
// In: images (n, h, w, c) and weights [kh][kw][c], any kernel, stride, padding and dilation. Out: float32.
// After tile.hpp and taps.hpp.
//
// Sums of a few pixels of one row times one vector of channels stay in registers. All rows of a chunk are done for some
// channels before the next ones, so that each input comes into the first cache once. Bound by the bandwidth of the
// cache that holds the images.
#ifndef MGE_CPU_DEPTHWISE_HPP
#define MGE_CPU_DEPTHWISE_HPP

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "mge/cpu/taps.hpp"
#include "mge/cpu/tile.hpp"

namespace mge::cpu {

// A use: forward (one phase an axis), or the gradient in the data (x is dy, w rotated, a phase for each position modulo
// the stride).
struct Depthwise {
  int64_t images, channels, kernel_width;
  int64_t in_height, in_width, out_height, out_width;
  std::vector<Taps> rows, cols;
};

inline Depthwise depthwise_forward(int64_t images, int64_t channels, const Axis& h, const Axis& w) {
  return {images, channels, w.kernel, h.length, w.length, h.count, w.count, {forward_taps(h)}, {forward_taps(w)}};
}
inline Depthwise depthwise_backward_data(int64_t images, int64_t channels, const Axis& h, const Axis& w) {
  return {images, channels, w.kernel, h.count, w.count, h.length, w.length, backward_taps(h), backward_taps(w)};
}

struct DepthwiseOperands {
  const float *x, *w;
  float* y;
  const float* bias;      // (optional) [c]
  const float* residual;  // (optional) as y
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
};

// Part of an output row, for some channels: the taps that its pixels share. Steps in floats.
struct DepthwiseRow {
  const float* const* x;  // the first tap of the first pixel, in each row of taps
  const float *w, *bias, *residual;
  float* y;
  int64_t rows, cols;           // taps
  int64_t x_col, w_row, w_col;  // between taps
  int64_t x_step, y_step;       // between pixels
  bool left, right;                    // the first, the last pixels of the row meet KW / 2 columns outside the image
  bool clip;
  float low, high;
};

// P pixels, the first at x_at and y_at, times `lanes` channels, kWidth where Whole is set. KW > 0: kernel rows of KW
// taps without dilation at stride S, so that each input serves all taps that meet it; but for the first Before and the
// last After inputs, which lie outside the image. KW = 0: any steps.
template <int KW, int S, int P, int Before, int After, bool Whole>
void depthwise_pixels(const DepthwiseRow& t, int64_t x_at, int64_t y_at, int64_t lanes) {
  auto get = [lanes](const float* p) { return Whole ? load(p) : load_n(p, lanes); };
  const int64_t x_col = t.x_col, x_step = t.x_step, y_step = t.y_step, w_row = t.w_row, w_col = t.w_col;
  vf sums[P];
  vf start = t.bias ? get(t.bias) : vf{};
  MGE_UNROLL
  for (int p = 0; p < P; ++p) sums[p] = start;
  const float* w_at = t.w;
  for (int64_t i = 0; i < t.rows; ++i, w_at += w_row) {
    const float* x = t.x[i] + x_at;
    if constexpr (KW > 0) {
      vf w[KW];
      MGE_UNROLL
      for (int k = 0; k < KW; ++k) w[k] = get(w_at + k * w_col);
      const float* at = x + Before * x_col;
      MGE_UNROLL
      for (int j = Before; j < (P - 1) * S + KW - After; ++j, at += x_col) {
        opaque(at);
        vf in = get(at);
        MGE_UNROLL
        for (int k = 0; k < KW; ++k)
          if (j >= k && (j - k) % S == 0 && (j - k) / S < P) accumulate(sums[(j - k) / S], in, w[k]);
      }
    } else {
      const float *x_tap = x, *w_tap = w_at;
      for (int64_t k = t.cols; k > 0; --k, x_tap += x_col, w_tap += w_col) {
        vf w = get(w_tap);
        const float* at = x_tap;
        MGE_UNROLL
        for (int p = 0; p < P; ++p, at += x_step) sums[p] = fma(get(at), w, sums[p]);
      }
    }
  }
  if (t.residual) {
    const float* at = t.residual + y_at;
    MGE_UNROLL
    for (int p = 0; p < P; ++p, at += y_step) sums[p] += get(at);
  }
  if (t.clip) {
    vf low = splat(t.low), high = splat(t.high);
    MGE_UNROLL
    for (int p = 0; p < P; ++p) sums[p] = min(high, max(low, sums[p]));  // in this order NaN stays
  }
  float* y = t.y + y_at;
  MGE_UNROLL
  for (int p = 0; p < P; ++p, y += y_step) Whole ? store(y, sums[p]) : store_n(y, sums[p], lanes);
}

constexpr int kDepthwisePixels = 8;  // of a tile: with the weights of a row of 5 taps, they fit 16 registers

using DepthwiseFunction = void (*)(const DepthwiseRow&, int64_t x_at, int64_t y_at, int64_t lanes);

// At [4 * (width - 1)]: the tiles inside a row; behind that: at its left end, its right end, and both.
template <int KW, int S, bool Whole, size_t... I>
constexpr std::array<DepthwiseFunction, sizeof...(I)> depthwise_functions(std::index_sequence<I...>) {
  return {depthwise_pixels<KW, S, I / 4 + 1, I % 2 * (KW / 2), I / 2 % 2 * (KW / 2), Whole>...};
}

// The pixels of a row in tiles of nearly equal width; `x_at` as in depthwise_pixels.
template <int KW, int S, bool Whole>
MGE_INLINE void depthwise_row(const DepthwiseRow& t, int64_t x_at, int64_t pixels, int64_t lanes) {
  static constexpr auto functions =
      depthwise_functions<KW, S, Whole>(std::make_index_sequence<4 * kDepthwisePixels>());
  const int64_t tiles = (pixels + kDepthwisePixels - 1) / kDepthwisePixels;
  const int64_t width = tiles == 1 ? pixels : pixels / tiles, wider = pixels - width * tiles;
  int64_t y_at = 0, ends = t.left;
  for (int64_t i = 0; i < tiles; ++i, ends = 0) {
    const int64_t mine = width + (i < wider);
    if (i == tiles - 1) ends += 2 * t.right;
    functions[static_cast<size_t>(4 * (mine - 1) + ends)](t, x_at, y_at, lanes);
    x_at += mine * t.x_step, y_at += mine * t.y_step;
  }
}

// How many columns the last pixel of a row meets behind the image.
inline int64_t beyond(const Taps& cols) {
  return cols.in + (cols.outs - 1) * cols.in_step + (cols.taps - 1) * cols.tap_step + 1 - cols.length;
}

constexpr int64_t kFirstCacheFloats = 8192;  // of 32 KiB

// Rows `begin` to `end` - 1 of all images' output rows, KW and S as in depthwise_pixels.
template <int KW, int S>
void depthwise_chunk(const Depthwise& d, const DepthwiseOperands& o, int64_t begin, int64_t end) {
  const int64_t c = d.channels, phases = d.rows.size();
  DepthwiseRow t{};
  int64_t most = 0;
  for (const Taps& rows : d.rows) most = std::max(most, rows.taps);
  std::vector<const float*> x_rows(static_cast<size_t>(most));
  t.x = x_rows.data();
  t.low = o.low, t.high = o.high, t.clip = o.low > -INFINITY || o.high < INFINITY;
  t.left = d.cols[0].in < 0, t.right = beyond(d.cols[0]) > 0;
  // So many channels at a time that the rows that meet one output row, and it, stay in the first cache.
  const int64_t row_floats = d.in_width * d.rows[0].taps + d.out_width;
  const int64_t group = std::max<int64_t>(1, kFirstCacheFloats / row_floats / kWidth) * kWidth;
  for (int64_t from = 0; from < c; from += group)
    for (int64_t at = begin, image = begin / d.out_height, q = begin % d.out_height; at < end; ++at, ++q) {
      if (q == d.out_height) q = 0, ++image;
      const int64_t j = phases == 1 ? q : q / phases;
      const Taps& rows = d.rows[q - j * phases];
      const Taps::Range row = rows.inside(j);
      const int64_t x_first = (image * d.in_height + rows.in + j * rows.in_step + row.begin * rows.tap_step) * d.in_width;
      const int64_t w_first = (rows.w + row.begin * rows.w_step) * d.kernel_width;
      t.rows = row.end - row.begin;
      for (int64_t i = 0; i < t.rows; ++i) x_rows[i] = o.x + (x_first + i * rows.tap_step * d.in_width) * c;
      t.w_row = rows.w_step * d.kernel_width * c;
      for (const Taps& cols : d.cols) {
        t.x_col = cols.tap_step * c, t.w_col = cols.w_step * c;
        t.x_step = cols.in_step * c, t.y_step = cols.out_step * c;
        // Outputs p to p + pixels - 1, which share the taps `col`.
        auto piece = [&](int64_t p, int64_t pixels, Taps::Range col) {
          if (!pixels) return;
          t.cols = col.end - col.begin;
          const int64_t x_at = cols.in + p * cols.in_step + col.begin * cols.tap_step;
          const int64_t y_at = at * d.out_width + cols.out + p * cols.out_step;
          const int64_t w_at = w_first + cols.w + col.begin * cols.w_step;
          for (int64_t k = from; k < std::min(c, from + group); k += kWidth) {
            t.w = o.w + w_at * c + k, t.y = o.y + y_at * c + k;
            t.bias = o.bias ? o.bias + k : nullptr;
            t.residual = o.residual ? o.residual + y_at * c + k : nullptr;
            if (kWidth < 16 && c - k >= kWidth)
              depthwise_row<KW, S, true>(t, x_at * c + k, pixels, kWidth);
            else  // masks cost nothing in AVX-512
              depthwise_row<KW, S, false>(t, x_at * c + k, pixels, std::min<int64_t>(c - k, kWidth));
          }
        };
        if (KW > 0) {
          piece(0, cols.outs, {0, KW});
          continue;
        }
        const Taps::Range whole = cols.whole();
        for (int64_t p = 0; p < whole.begin; ++p) piece(p, 1, cols.inside(p));
        piece(whole.begin, whole.end - whole.begin, {0, cols.taps});
        for (int64_t p = whole.end; p < cols.outs; ++p) piece(p, 1, cols.inside(p));
      }
    }
}

// Rows `begin` to `end` - 1 of all images' output rows.
inline void depthwise_rows(const Depthwise& d, const DepthwiseOperands& o, int64_t begin, int64_t end) {
  const Taps& cols = d.cols[0];
  const int64_t out = cols.taps / 2, over = beyond(cols);
  // Nothing lies outside, or half a kernel, and that within the first and the last 4 pixels.
  const bool usual = d.cols.size() == 1 && cols.tap_step == 1 && (cols.in == 0 || cols.in == -out) &&
                     (over <= 0 || over == out) && (cols.outs > 3 || cols.taps == 3);
  auto chunk = !usual || cols.in_step > 2 ? depthwise_chunk<0, 1>
               : cols.taps == 3           ? (cols.in_step == 1 ? depthwise_chunk<3, 1> : depthwise_chunk<3, 2>)
               : cols.taps == 5           ? (cols.in_step == 1 ? depthwise_chunk<5, 1> : depthwise_chunk<5, 2>)
                                          : depthwise_chunk<0, 1>;
  chunk(d, o, begin, end);
}

// ---- The gradient in the weights ----

// Adds to dw[kh][kw][c] what output rows `begin` to `end` - 1 give, for V vectors of channels from c on (one of `lanes`
// channels where Whole is false) and R rows of KW taps from ky, kx on: sums stay in registers over all pixels.
template <int R, int KW, int V, bool Whole>
void depthwise_weight_taps(const Depthwise& d, const float* x, const float* dy, float* dw, int64_t ky, int64_t kx,
                           int64_t c, int64_t lanes, int64_t begin, int64_t end) {
  auto get = [lanes](const float* p) { return Whole ? load(p) : load_n(p, lanes); };
  const Taps& rows = d.rows[0];
  Taps cols = d.cols[0];
  cols.in += kx * cols.tap_step, cols.taps = KW;
  const Taps::Range whole = cols.whole();
  const int64_t x_row = rows.tap_step * d.in_width * d.channels, x_col = cols.tap_step * d.channels;
  const int64_t x_step = cols.in_step * d.channels;
  float* target = dw + (ky * d.kernel_width + kx) * d.channels + c;
  vf sums[R * KW * V];
  auto place = [&](int r, int k, int v) { return target + (r * d.kernel_width + k) * d.channels + v * kWidth; };
  MGE_UNROLL
  for (int i = 0; i < R * KW * V; ++i) sums[i] = get(place(i / V / KW, i / V % KW, i % V));
  for (int64_t at = begin, image = begin / d.out_height, p = begin % d.out_height; at < end; ++at, ++p) {
    if (p == d.out_height) p = 0, ++image;
    const Taps::Range row = rows.inside(p);
    const int64_t first = std::max<int64_t>(row.begin - ky, 0), last = std::min<int64_t>(row.end - ky, R);
    if (first >= last) continue;
    const int64_t x_first = (image * d.in_height + rows.in + p * rows.in_step + ky * rows.tap_step) * d.in_width;
    const float *x_at = x + (x_first + cols.in) * d.channels + c, *g_at = dy + at * d.out_width * d.channels + c;
    // All taps of pixel j, or those in the ranges.
    auto pixel = [&](int64_t j, auto all, Taps::Range col) {
      const float *x_j = x_at + j * x_step, *g_j = g_at + j * d.channels;
      vf g[V];
      MGE_UNROLL
      for (int v = 0; v < V; ++v) g[v] = get(g_j + v * kWidth);
      MGE_UNROLL
      for (int i = 0; i < R * KW * V; ++i) {
        const int r = i / V / KW, k = i / V % KW, v = i % V;
        if (all || (r >= first && r < last && k >= col.begin && k < col.end))
          sums[i] = fma(g[v], get(x_j + r * x_row + k * x_col + v * kWidth), sums[i]);
      }
    };
    const int64_t inner_end = first == 0 && last == R ? whole.end : whole.begin;
    for (int64_t j = 0; j < whole.begin; ++j) pixel(j, std::false_type(), cols.inside(j));
    for (int64_t j = whole.begin; j < inner_end; ++j) pixel(j, std::true_type(), {});
    for (int64_t j = inner_end; j < cols.outs; ++j) pixel(j, std::false_type(), cols.inside(j));
  }
  MGE_UNROLL
  for (int i = 0; i < R * KW * V; ++i) {
    float* to = place(i / V / KW, i / V % KW, i % V);
    Whole ? store(to, sums[i]) : store_n(to, sums[i], lanes);
  }
}

template <int R, int KW, int V>
void depthwise_weight_channels(const Depthwise& d, const float* x, const float* dy, float* dw, int64_t begin,
                               int64_t end) {
  for (int64_t c = 0; c < d.channels;) {
    const int64_t left = d.channels - c, step = left >= V * kWidth ? V * kWidth : std::min<int64_t>(left, kWidth);
    for (int64_t ky = 0; ky < d.rows[0].taps; ky += R)
      for (int64_t kx = 0; kx < d.kernel_width; kx += KW)
        if (step == V * kWidth)
          depthwise_weight_taps<R, KW, V, true>(d, x, dy, dw, ky, kx, c, kWidth, begin, end);
        else
          depthwise_weight_taps<R, KW, 1, false>(d, x, dy, dw, ky, kx, c, step, begin, end);
    c += step;
  }
}

// So many output rows that they and the rows that they meet stay in the second cache, and that there are enough chunks
// for the threads, but none too small to be worth one. Shapes alone decide.
inline int64_t depthwise_chunk_rows(const Depthwise& d) {
  constexpr int64_t kCacheFloats = 96 * 1024, kUnits = 16, kLeast = 1 << 20;  // multiplications
  const int64_t rows = std::max<int64_t>(1, d.images * d.out_height);
  const int64_t row = (d.in_width * d.in_height / std::max<int64_t>(1, d.out_height) + d.out_width) * d.channels + 1;
  const int64_t work = d.out_width * d.channels * d.rows[0].taps * d.cols[0].taps + 1;
  return std::clamp<int64_t>(std::min(kCacheFloats / row, std::max(rows / kUnits, kLeast / work)), 1, rows);
}

// Writes to dw[kh][kw][c] what rows `begin` to `end` - 1 of all images' dy give; `d` is that of the forward pass.
inline void depthwise_weight_rows(const Depthwise& d, const float* x, const float* dy, float* dw, int64_t begin,
                                  int64_t end) {
  std::fill(dw, dw + d.rows[0].taps * d.kernel_width * d.channels, 0.0f);
  auto run = d.kernel_width == 3 && d.rows[0].taps == 3 ? depthwise_weight_channels<3, 3, 1>
             : d.kernel_width == 3                      ? depthwise_weight_channels<1, 3, 4>
             : d.kernel_width == 5                      ? depthwise_weight_channels<1, 5, 2>
                                                        : depthwise_weight_channels<1, 1, 4>;
  run(d, x, dy, dw, begin, end);
}

// The whole gradient dw (c, 1, kh, kw). Parts of the rows have sums of their own, added in their order.
class DepthwiseWeight {
 public:
  explicit DepthwiseWeight(const Depthwise& forward)
      : d_(forward), rows_(forward.images * forward.out_height), taps_(forward.rows[0].taps * forward.kernel_width),
        parts_(std::clamp<int64_t>(rows_ * forward.out_width * forward.channels * taps_ >> 20, 1, 16)) {}

  int64_t workspace_floats() const { return parts_ * taps_ * d_.channels; }

  void run(const float* x, const float* dy, float* dw, float* workspace) const {
    const int64_t each = ceil_div(rows_, parts_), size = taps_ * d_.channels;
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        depthwise_weight_rows(d_, x, dy, workspace + i * size, std::min(rows_, i * each),
                              std::min(rows_, (i + 1) * each));
    });
    for (int64_t tap = 0; tap < taps_; ++tap)
      for (int64_t c = 0; c < d_.channels; ++c) {
        float total = workspace[tap * d_.channels + c];
        for (int64_t i = 1; i < parts_; ++i) total += workspace[i * size + tap * d_.channels + c];
        dw[c * taps_ + tap] = total;
      }
  }

 private:
  Depthwise d_;
  int64_t rows_, taps_, parts_;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_DEPTHWISE_HPP
