// mge/cpu/conv_input.hpp: the gradient of a convolution in its input, over one to three spatial axes, channels last.
//
// In: dy (n, od, oh, ow, o), weights packed as conv.hpp has them for the rotated weight. Out: dx (n, d, h, w, c).
// After conv.hpp and taps.hpp.
//
// At stride 1 it is a convolution of dy. Any other is one for each phase: the positions modulo the stride, which meet
// some of the taps each. Units are some rows of dx; each first copies the rows of dy that it meets, with zeros around
// them, into scratch memory, so that tiles know no borders.
#ifndef MGE_CPU_CONV_INPUT_HPP
#define MGE_CPU_CONV_INPUT_HPP

#include <vector>

#include "mge/cpu/conv.hpp"

namespace mge::cpu {

// The convolution of dy that is the gradient, where the stride is 1; its padding must not be negative.
inline ConvShape rotated_shape(const ConvShape& s) {
  auto turned = [](const Axis& a) {
    return Axis{a.count, a.length, a.kernel, 1, a.dilation * (a.kernel - 1) - a.padding, a.dilation};
  };
  return {s.images, s.outputs, s.channels, s.groups, turned(s.d), turned(s.h), turned(s.w)};
}
inline bool is_rotated(const ConvShape& s) {
  auto fits = [](const Axis& a) { return a.stride == 1 && a.dilation * (a.kernel - 1) >= a.padding; };
  return fits(s.d) && fits(s.h) && fits(s.w);
}

class ConvInput {
 public:
  // `s` is the shape of the forward pass.
  explicit ConvInput(const ConvShape& s) : s_(s), d_(backward_taps(s.d)), h_(backward_taps(s.h)), w_(backward_taps(s.w)) {
    const int64_t kScratch = 64 * 1024;  // floats
    columns_ = reach(s.w, 0, s.w.length);
    planes_ = std::max<int64_t>(1, reach(s.d, 0, 1).size() + 1);
    const int64_t units = std::clamp<int64_t>(s.pixels() * s.taps() * s.group_channels() * s.outputs / Cut::kLeast, 1,
                                              Cut::kUnits);
    rows_ = std::max<int64_t>(1, s.h.length);
    while (rows_ > 1 && (scratch_floats() > kScratch || unit_count() < units)) rows_ = (rows_ + 1) / 2;
  }

  int64_t scratch_floats() const {  // of each worker
    return round_up(planes_ * (reach(s_.h, 0, rows_).size() + 1) * columns_.size() * s_.outputs, 16);
  }

  // `scratch`: scratch_floats() for each of the host's threads, aligned to 64 bytes.
  void run(const float* dy, const float* packed, float* dx, float* scratch) const {
    parallel_for(unit_count(), 1, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i) unit(dy, packed, dx, i, scratch + worker * scratch_floats());
    });
  }

 private:
  struct Span {
    int64_t begin, end;
    int64_t size() const { return std::max<int64_t>(0, end - begin); }
  };
  // The positions of dy, inside or not, that positions `begin` to `end` - 1 of dx may meet.
  static Span reach(const Axis& a, int64_t begin, int64_t end) {
    return {ceil_div(begin + a.padding - (a.kernel - 1) * a.dilation, a.stride),
            1 - ceil_div(-(end - 1 + a.padding), a.stride)};
  }
  int64_t row_parts() const { return ceil_div(s_.h.length, rows_); }
  int64_t unit_count() const { return s_.images * s_.d.length * row_parts(); }

  void unit(const float* dy, const float* packed, float* dx, int64_t i, float* scratch) const {
    const int64_t first = i % row_parts() * rows_, last = std::min(s_.h.length, first + rows_);
    i /= row_parts();
    const int64_t z = i % s_.d.length, image = i / s_.d.length;
    const Span planes = reach(s_.d, z, z + 1), rows = reach(s_.h, first, last);
    copy(dy + image * s_.d.count * s_.h.count * s_.w.count * s_.outputs, planes, rows, scratch);
    const int64_t row = columns_.size() * s_.outputs, plane = rows.size() * row;
    Tile tile = plain_tile();
    tile.depth = s_.group_outputs(), tile.a_row = s_.outputs, tile.a_jump = kHalf * tile.a_row;
    tile.b_block = s_.taps() * tile.depth * kBlock, tile.y_row = s_.w.stride * s_.channels;
    const int64_t n = s_.group_channels(), group_floats = ceil_div(n, kBlock) * tile.b_block;
    const Taps& d = d_[static_cast<size_t>(z % s_.d.stride)];
    std::vector<Tap> taps;
    for (int64_t g = 0; g < s_.groups; ++g)
      for (int64_t c = 0; c < n; c += kColumns) {
        tile.columns = std::min<int64_t>(kColumns, n - c);
        tile.b = packed + g * group_floats + c / kBlock * tile.b_block + c % kBlock;
        for (int64_t q = first; q < last; ++q)
          for (const Taps& w : w_) {
            const Taps& h = h_[static_cast<size_t>(q % s_.h.stride)];
            taps.clear();
            for (int64_t kd = 0; kd < d.taps; ++kd)
              for (int64_t kh = 0; kh < h.taps; ++kh)
                for (int64_t kw = 0; kw < w.taps; ++kw)
                  taps.push_back({kd * d.tap_step * plane + kh * h.tap_step * row + kw * w.tap_step * s_.outputs,
                                  (((d.w + kd * d.w_step) * s_.h.kernel + h.w + kh * h.w_step) * s_.w.kernel + w.w +
                                   kw * w.w_step) * tile.depth * kBlock});
            tile.taps = taps.data(), tile.tap_count = static_cast<int64_t>(taps.size());
            const float* a = scratch + g * s_.group_outputs();
            if (!taps.empty())
              a += (d.in + z / s_.d.stride - planes.begin) * plane + (h.in + q / s_.h.stride - rows.begin) * row +
                   (w.in - columns_.begin) * s_.outputs;
            float* y = dx + (((image * s_.d.length + z) * s_.h.length + q) * s_.w.length + w.out) * s_.channels +
                       g * n + c;
            for (int64_t t = 0; t < tile_count(w.outs); ++t) {
              const RowRange p = tile_rows(w.outs, t);
              tile.a = a + p.begin * tile.a_row, tile.y = y + p.begin * tile.y_row;
              run_tile(tile, p.rows);
            }
          }
      }
  }

  void copy(const float* dy, const Span& planes, const Span& rows, float* to) const {
    const int64_t begin = std::clamp<int64_t>(columns_.begin, 0, s_.w.count);
    const int64_t end = std::clamp(columns_.end, begin, s_.w.count), o = s_.outputs;
    for (int64_t z = planes.begin; z < planes.end; ++z)
      for (int64_t r = rows.begin; r < rows.end; ++r, to += columns_.size() * o) {
        if (z < 0 || z >= s_.d.count || r < 0 || r >= s_.h.count || begin >= end) {
          std::fill_n(to, columns_.size() * o, 0.0f);
          continue;
        }
        float* at = std::fill_n(to, (begin - columns_.begin) * o, 0.0f);
        at = std::copy_n(dy + ((z * s_.h.count + r) * s_.w.count + begin) * o, (end - begin) * o, at);
        std::fill_n(at, (columns_.end - end) * o, 0.0f);
      }
  }

  ConvShape s_;
  std::vector<Taps> d_, h_, w_;  // phases
  Span columns_{0, 0};
  int64_t planes_ = 1, rows_ = 1;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_CONV_INPUT_HPP
