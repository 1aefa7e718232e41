// mge/cpu/inverted_residual.hpp: expand by 1x1, filter each channel, project by 1x1, without the wide images between.
//
// In: images (n, h, w, c); weights packed as conv.hpp has them for both products, [k][k][e] for the filter. Out:
//
//   y = activation(project(act(filter(act(expand(x) + bias)) + bias)) + bias + residual),  (n, oh, ow, o)
//
// After depthwise.hpp and conv.hpp.
//
// A unit of work is some output rows of one image, or some of the e wide channels, whose sums are added up at the end.
// It goes down the image some rows at a time. The wide rows that the next outputs meet stay in a ring in the second
// cache, cut into planes of a few channels: a plane is expanded and filtered while it is in the first cache. The
// filtered planes are the taps of one product.
#ifndef MGE_CPU_INVERTED_RESIDUAL_HPP
#define MGE_CPU_INVERTED_RESIDUAL_HPP

#include <vector>

#include "mge/cpu/conv.hpp"
#include "mge/cpu/depthwise.hpp"

namespace mge::cpu {

struct InvertedShape {
  int64_t images, channels, wide, outputs;  // wide: channels of the filter; `channels` where nothing expands
  bool expands;
  Axis h, w;  // of the filter: kernel 3 or 5, the same on both; padding half of it; stride 1 or 2; dilation 1
};

struct InvertedData {
  const float *x, *expand, *expand_bias, *filter, *filter_bias, *project, *bias;  // biases and `expand`: optional
  const float* residual;                                                          // (optional) as y
  float* y;
  Activation expand_activation, filter_activation, activation;
};

// A row of pixels of kWidth channels from K rows of inputs, of which none lies outside the image.
template <int K>
struct FilterRow {
  const float* x[K];  // the first tap of the first pixel
  vf weights[K * K], bias, low, high;
  int64_t step;  // floats between pixels

  template <int S>
  void run(float* y, int64_t pixels) const {
    constexpr int P = 7;
    vf w[K * K];
    MGE_UNROLL
    for (int i = 0; i < K * K; ++i) w[i] = weights[i];
    int64_t p = 0;
    for (; p + P <= pixels; p += P) filter<S, P>(w, p * S * step, y + p * step);
    for (; p < pixels; ++p) filter<S, 1>(w, p * S * step, y + p * step);
  }

 private:
  template <int S, int P>
  MGE_INLINE void filter(const vf (&w)[K * K], int64_t at, float* y) const {
    vf sums[P];
    MGE_UNROLL
    for (int p = 0; p < P; ++p) sums[p] = bias;
    MGE_UNROLL
    for (int i = 0; i < K; ++i) {
      const float* in = x[i] + at;
      MGE_UNROLL
      for (int j = 0; j < (P - 1) * S + K; ++j, in += step) {
        opaque(in);
        const vf v = load(in);
        MGE_UNROLL
        for (int k = 0; k < K; ++k)
          if (j >= k && (j - k) % S == 0 && (j - k) / S < P) accumulate(sums[(j - k) / S], v, w[i * K + k]);
      }
    }
    MGE_UNROLL
    for (int p = 0; p < P; ++p, y += step) store(y, min(high, max(low, sums[p])));  // in this order NaN stays
  }
};

// A tile of R rows and V whole vectors of a product, into memory that is near: the sums begin with the bias, and
// nothing is fetched or added, which is a fifth of run_tile's time for 16 terms.
template <int R, int V>
void short_tile(const Tile& tile) {
  using Kernel = Microkernel<R, V, Left::kRows, Right::kPacked>;
  vf acc[R][V];
  MGE_UNROLL
  for (int v = 0; v < V; ++v) {
    const vf start = tile.bias ? load(tile.bias + v * kWidth) : vf{};
    MGE_UNROLL
    for (int r = 0; r < R; ++r) acc[r][v] = start;
  }
  typename Kernel::Rows rows{4 * tile.a_row, 12 * tile.a_row, 20 * tile.a_row};
  typename Kernel::Sides at;
  at.a_step = 4, at.b_step = 4 * kBlock;
  constexpr int kTerms = Kernel::kUnroll;
  at.low = reinterpret_cast<const char*>(tile.a), at.high = at.low + 4 * tile.a_jump;
  at.b0 = reinterpret_cast<const char*>(tile.b), at.b1 = at.b0 + 4 * tile.b_block;
  int64_t k = tile.depth;
  for (; k >= kTerms; k -= kTerms, at.advance(kTerms)) {
    opaque(rows.s), opaque(rows.s3), opaque(rows.s5);
    MGE_UNROLL
    for (int i = 0; i < kTerms; ++i) {
      opaque(at.low), opaque(at.high), opaque(at.b0), opaque(at.b1);
      Kernel::term(acc, at, rows, i);
    }
  }
  for (; k > 0; --k, at.advance(1)) Kernel::term(acc, at, rows, 0);
  const vf low = splat(tile.low), high = splat(tile.high);
  float* y = tile.y;
  MGE_UNROLL
  for (int r = 0; r < R; ++r, y += tile.y_row)
    MGE_UNROLL
    for (int v = 0; v < V; ++v) store(y + v * kWidth, min(high, max(low, acc[r][v])));  // in this order NaN stays
}

inline void run_short_tile(const Tile& tile, int64_t rows) {
  const bool wide = tile.columns == kColumns;
  if ((!wide && tile.columns != kWidth) || (rows != kRows && rows != kHalf)) return run_tile(tile, rows);
  if (rows == kRows)
    (wide ? short_tile<kRows, kVectors> : short_tile<kRows, 1>)(tile);
  else
    (wide ? short_tile<kHalf, kVectors> : short_tile<kHalf, 1>)(tile);
}

class InvertedResidual {
 public:
  explicit InvertedResidual(const InvertedShape& shape) : s_(shape) {
    width_ = s_.wide % 32 && s_.wide % 48 == 0 ? 48 : 32;
    const int64_t work = s_.images * s_.wide * (s_.expands ? s_.h.length * s_.w.length * s_.channels : 0) +
                         s_.images * s_.wide * pixels() * s_.outputs;
    int64_t each = 1;  // units of an image
    while (2 * each * std::max<int64_t>(1, s_.images) <= std::min(work / kLeast, kUnits)) each *= 2;
    // Parts of the rows expand the rows between them twice; parts of the channels have sums that are added up.
    row_parts_ = std::clamp<int64_t>(s_.h.count / kLeastRows, 1, each);
    planes_ = ceil_div(s_.wide, width_);
    channel_parts_ = row_parts_ > 1 ? 1 : std::clamp<int64_t>(planes_ / kLeastPlanes, 1, each);
    // So many rows at a time that the wide rows of a plane stay in the first cache.
    const int64_t fit = kPlaneFloats / (s_.w.length * width_) + s_.h.stride - s_.h.kernel;
    group_ = std::clamp<int64_t>(fit / s_.h.stride, 1, ceil_div(s_.h.count, row_parts_));
    slots_ = std::min(s_.h.length, (group_ - 1) * s_.h.stride + s_.h.kernel);
    // So many channels at a time that their rings and what was filtered stay in the second cache.
    const int64_t plane = ring_floats() + group_ * s_.w.count * width_;
    block_ = std::clamp<int64_t>(kBlockFloats / plane, 1, ceil_div(planes_, channel_parts_));
  }

  // Of the whole: sums of the parts of the channels, then scratch memory for each of the host's threads.
  int64_t workspace_floats(int64_t threads) const { return sums_floats() + threads * scratch_floats(); }

  void run(const InvertedData& data, float* workspace) const {
    float* scratch = workspace + sums_floats();
    parallel_for(s_.images * row_parts_ * channel_parts_, 1, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i) unit(data, workspace, i, scratch + worker * scratch_floats());
    });
    if (channel_parts_ > 1) add_parts(data, workspace);
  }

 private:
  static constexpr int64_t kUnits = 16, kLeast = 3000000, kLeastRows = 14, kLeastPlanes = 2;
  static constexpr int64_t kPlaneFloats = 8 * 1024;    // of wide rows in the first cache
  static constexpr int64_t kBlockFloats = 112 * 1024;  // of wide rows, before and after the filter, in the second

  int64_t pixels() const { return s_.h.count * s_.w.count; }
  int64_t wide_row() const { return s_.w.length + 2 * s_.w.padding; }   // pixels
  int64_t ring_floats() const { return slots_ * wide_row() * width_; }  // of a plane
  int64_t scratch_floats() const {
    return round_up(wide_row() * width_ + block_ * (ring_floats() + group_ * s_.w.count * width_), 16);
  }
  int64_t sums_floats() const {
    return channel_parts_ > 1 ? round_up(channel_parts_ * s_.images * pixels() * s_.outputs, 16) : 0;
  }

  void unit(const InvertedData& data, float* sums, int64_t i, float* scratch) const {
    const int64_t part = i % channel_parts_, row = i / channel_parts_ % row_parts_;
    const int64_t image = i / channel_parts_ / row_parts_;
    const int64_t begin = share(planes_, channel_parts_, part), end = share(planes_, channel_parts_, part + 1);
    float* y = channel_parts_ > 1 ? sums + part * s_.images * pixels() * s_.outputs : data.y;
    y += image * pixels() * s_.outputs;
    for (int64_t at = begin; at < end; at += block_) {
      const int64_t next = std::min(end, at + block_);
      block(data, y, image, share(s_.h.count, row_parts_, row), share(s_.h.count, row_parts_, row + 1), at * width_,
            std::min(s_.wide, next * width_), at > begin, channel_parts_ == 1 && next == end, scratch);
    }
  }
  // Where part i of `count` begins, of parts as equal as can be.
  static int64_t share(int64_t count, int64_t parts, int64_t i) { return count * i / parts; }

  // Output rows `first` to `last` - 1 from the wide channels `from` to `to` - 1. `adds` to y; `ends` with what follows.
  void block(const InvertedData& data, float* y, int64_t image, int64_t first, int64_t last, int64_t from, int64_t to,
             bool adds, bool ends, float* scratch) const {
    const int64_t planes = ceil_div(to - from, width_);
    float *zeros = scratch, *ring = zeros + wide_row() * width_, *filtered = ring + planes * ring_floats();
    const int64_t border = s_.w.padding * width_, row_floats = wide_row() * width_;
    std::fill_n(zeros, row_floats, 0.0f);
    for (float* at = ring; at < filtered; at += row_floats)
      std::fill_n(at, border, 0.0f), std::fill_n(at + row_floats - border, border, 0.0f);
    const float* x = data.x + image * s_.h.length * s_.w.length * s_.channels;
    int64_t ready = 0;  // wide rows
    for (int64_t row = first; row < last; row += group_) {
      const int64_t rows = std::min(group_, last - row), in = row * s_.h.stride - s_.h.padding;
      const int64_t begin = std::max({ready, in, int64_t{0}});
      const int64_t end = std::min(s_.h.length, in + (rows - 1) * s_.h.stride + s_.h.kernel);
      for (int64_t p = 0; p < planes; ++p) {
        const int64_t c = from + p * width_, n = std::min(width_, to - c);
        expand(data, x, begin, end, c, n, ring + p * ring_floats());
        if (s_.expands && row == first && c + n < to)  // the next plane's weights come from memory meanwhile
          for (int64_t i = 0; i < n * s_.channels; i += kBlock)
            __builtin_prefetch(data.expand + (c + n) * s_.channels + i, 0, 2);
        filter(data, ring + p * ring_floats(), zeros, row, rows, c, n, filtered + p * filtered_floats());
      }
      ready = end;
      project(data, filtered, image, row, rows, from, to, y, adds, ends);
    }
  }
  int64_t filtered_floats() const { return group_ * s_.w.count * width_; }  // of a plane

  // Input rows `begin` to `end` - 1 into the ring of a plane of n channels from c on.
  void expand(const InvertedData& data, const float* x, int64_t begin, int64_t end, int64_t c, int64_t n,
              float* ring) const {
    const int64_t w = s_.w.length;
    if (!s_.expands) {
      for (; begin < end; ++begin)
        for (int64_t p = 0; p < w; ++p)
          std::memcpy(ring_row(ring, begin) + p * width_, x + (begin * w + p) * s_.channels + c, 4 * n);
      return;
    }
    Tile tile = plain_tile();
    tile.depth = s_.channels, tile.a_row = s_.channels, tile.a_jump = kHalf * tile.a_row;
    tile.b_block = s_.channels * kBlock, tile.y_row = width_;
    set(tile, data.expand_activation);
    const RowTiles tiles(w);
    for (int64_t k = 0; k < n; k += kColumns) {
      tile.columns = std::min<int64_t>(kColumns, n - k);
      tile.b = data.expand + (c + k) / kBlock * tile.b_block + (c + k) % kBlock;
      tile.bias = data.expand_bias ? data.expand_bias + c + k : nullptr;
      for (int64_t row = begin; row < end; ++row)
        for (int64_t i = 0; i < tiles.count(); ++i) {
          const RowRange r = tiles[i];
          tile.a = x + (row * w + r.begin) * s_.channels;
          tile.y = ring_row(ring, row) + r.begin * width_ + k;
          run_short_tile(tile, r.rows);
          if (data.expand_activation.rows) data.expand_activation.rows(tile.y, width_, r.rows, tile.columns);
        }
    }
  }

  // Where the first pixel of a row is in the ring of a plane.
  float* ring_row(float* ring, int64_t row) const {
    return ring + (row % slots_ * wide_row() + s_.w.padding) * width_;
  }

  // `rows` output rows from `row` on, from the ring of a plane.
  void filter(const InvertedData& data, float* ring, const float* zeros, int64_t row, int64_t rows, int64_t c,
              int64_t n, float* y) const {
    using Self = InvertedResidual;
    const bool three = s_.h.kernel == 3;
    auto run = s_.w.stride == 1 ? (three ? &Self::filter_rows<3, 1> : &Self::filter_rows<5, 1>)
                                : (three ? &Self::filter_rows<3, 2> : &Self::filter_rows<5, 2>);
    (this->*run)(data, ring, zeros, row, rows, c, n, y);
    if (data.filter_activation.rows) data.filter_activation.rows(y, width_, rows * s_.w.count, n);
  }

  template <int K, int S>
  void filter_rows(const InvertedData& data, float* ring, const float* zeros, int64_t row, int64_t rows, int64_t c,
                   int64_t n, float* y) const {
    const Activation& act = data.filter_activation;
    FilterRow<K> t;
    t.step = width_, t.low = splat(act.low), t.high = splat(act.high);
    for (int64_t v = 0; v < n; v += kWidth) {
      const int64_t lanes = std::min<int64_t>(kWidth, n - v);
      for (int k = 0; k < K * K; ++k) t.weights[k] = load_n(data.filter + k * s_.wide + c + v, lanes);
      t.bias = data.filter_bias ? load_n(data.filter_bias + c + v, lanes) : vf{};
      for (int64_t q = 0; q < rows; ++q) {
        for (int64_t k = 0; k < K; ++k) {
          const int64_t in = (row + q) * S - s_.h.padding + k;
          t.x[k] = (in < 0 || in >= s_.h.length ? zeros : ring_row(ring, in) - s_.w.padding * width_) + v;
        }
        t.template run<S>(y + q * s_.w.count * width_ + v, s_.w.count);
      }
    }
  }

  void project(const InvertedData& data, const float* filtered, int64_t image, int64_t row, int64_t rows, int64_t from,
               int64_t to, float* y, bool adds, bool ends) const {
    constexpr int64_t kTaps = 64;
    Tap taps[kTaps];
    Tile tile = plain_tile();
    tile.taps = taps, tile.a_row = width_, tile.a_jump = kHalf * tile.a_row;
    tile.b_block = s_.wide * kBlock, tile.y_row = tile.residual_row = s_.outputs;
    const RowTiles tiles(rows * s_.w.count);
    for (int64_t p = 0; from < to;) {  // whole planes are the taps of one product; what remains is another
      tile.depth = std::min(width_, to - from), tile.tap_count = std::min(kTaps, (to - from) / tile.depth);
      tile.add = adds;
      for (int64_t t = 0; t < tile.tap_count; ++t, ++p, from += tile.depth)
        taps[t] = {p * filtered_floats(), from * kBlock};
      adds = true;
      const bool last = ends && from == to;
      if (last) set(tile, data.activation);
      for (int64_t c = 0; c < s_.outputs; c += kColumns) {
        tile.columns = std::min<int64_t>(kColumns, s_.outputs - c);
        tile.b = data.project + c / kBlock * tile.b_block + c % kBlock;
        tile.bias = last && data.bias ? data.bias + c : nullptr;
        for (int64_t i = 0; i < tiles.count(); ++i) {
          const RowRange r = tiles[i];
          const int64_t at = (row * s_.w.count + r.begin) * s_.outputs + c;
          tile.a = filtered + r.begin * width_, tile.y = y + at;
          if (c + kColumns < s_.outputs) {
            const float* next = tile.b + kPanel / kBlock * tile.b_block + taps[0].b;
            tile.fetch(next, tile.tap_count * tile.depth, i, tiles.count());
          }
          if (last && data.residual) tile.residual = data.residual + image * pixels() * s_.outputs + at;
          run_tile(tile, r.rows);
          if (last && data.activation.rows) data.activation.rows(tile.y, s_.outputs, r.rows, tile.columns);
        }
      }
    }
  }

  static void set(Tile& tile, const Activation& activation) {
    tile.clip = activation.clip, tile.low = activation.low, tile.high = activation.high;
  }

  // The sums of the parts of the channels, in their order, and what follows.
  void add_parts(const InvertedData& data, const float* sums) const {
    const int64_t o = s_.outputs, count = s_.images * pixels();
    parallel_for(count, std::max<int64_t>(1, (1 << 14) / o), [&](int64_t begin, int64_t end) {
      const vf low = splat(data.activation.low), high = splat(data.activation.high);
      for (int64_t p = begin; p < end; ++p)
        for (int64_t c = 0; c < o; c += kWidth) {
          const int64_t n = std::min<int64_t>(kWidth, o - c), at = p * o + c;
          vf sum = load_n(sums + at, n);
          for (int64_t i = 1; i < channel_parts_; ++i) sum += load_n(sums + i * count * o + at, n);
          if (data.bias) sum += load_n(data.bias + c, n);
          if (data.residual) sum += load_n(data.residual + at, n);
          if (data.activation.clip) sum = min(high, max(low, sum));
          store_n(data.y + at, sum, n);
        }
      if (data.activation.rows) data.activation.rows(data.y + begin * o, o, end - begin, o);
    });
  }

  InvertedShape s_;
  int64_t width_, planes_;             // channels of a plane, planes
  int64_t row_parts_, channel_parts_;  // units of an image
  int64_t group_, slots_, block_;      // output rows at a time, wide rows of a ring, planes at a time
};

}  // namespace mge::cpu

#endif  // MGE_CPU_INVERTED_RESIDUAL_HPP
