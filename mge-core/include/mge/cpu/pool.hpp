// mge/cpu/pool.hpp: maxima and means of windows over one to three spatial axes, and their gradients.
//
// In: images (n, c, *size). Out: the pooled images, and back. Works on rows of an image; pool_last.hpp is for channels
// last. The gradients gather: each element of the input looks for the windows that it is in, so no two threads write to
// one place.
// After lane.hpp.
#ifndef MGE_CPU_POOL_HPP
#define MGE_CPU_POOL_HPP

#include <type_traits>

#include "mge/cpu/lane.hpp"

namespace mge::cpu {

constexpr int64_t kPoolStrip = 64;  // channels, or places of a row, that are worked on together

// One spatial axis.
struct PoolAxis {
  int64_t size = 1, count = 1, kernel = 1, stride = 1, before = 0;

  // The taps of window `o` that lie in the image: first to last - 1.
  int64_t first(int64_t o) const { return std::max<int64_t>(0, before - o * stride); }
  int64_t last(int64_t o) const { return std::min(kernel, size + before - o * stride); }
  // The windows in which element `i` lies: low(i) to high(i) - 1; it is tap i + before - o * stride of window o.
  std::vector<std::pair<int64_t, int64_t>> windows = {{0, 1}};
  int64_t low(int64_t i) const { return windows[static_cast<size_t>(i)].first; }
  int64_t high(int64_t i) const { return windows[static_cast<size_t>(i)].second; }
  void find_windows() {
    windows.resize(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i)
      windows[static_cast<size_t>(i)] = {std::max<int64_t>(0, (i + before - kernel + stride) / stride),
                                         std::min(count, (i + before) / stride + 1)};
  }
  // The windows whose tap `k` lies in the image: from to to - 1.
  int64_t from(int64_t k) const { return std::max<int64_t>(0, (before - k + stride - 1) / stride); }
  int64_t to(int64_t k) const {
    return size + before - k <= 0 ? 0 : std::min(count, (size + before - k - 1) / stride + 1);
  }
};

struct Pool {
  PoolAxis axis[3];  // depth, height, width
  int64_t images, channels;  // channels 1 where they are not the last axis: each is an image

  Pool(const Use& use, const std::vector<int64_t>& input, bool channels_last) {
    const auto kernel = use.integers("kernel"), stride = use.integers("stride"), padding = use.integers("padding");
    const size_t n = kernel.size();
    images = channels_last ? input[0] : input[0] * input[1];
    channels = channels_last ? input[n + 1] : 1;
    for (size_t i = 0; i < n; ++i) {
      const int64_t size = input[i + (channels_last ? 1 : 2)];
      const int64_t count = (size + padding[i] + padding[n + i] - kernel[i]) / stride[i] + 1;
      PoolAxis& mine = axis[3 - n + i];
      mine.size = size, mine.count = count, mine.kernel = kernel[i], mine.stride = stride[i];
      mine.before = padding[i];
      mine.find_windows();
    }
  }
  int64_t in_size() const { return axis[0].size * axis[1].size * axis[2].size; }
  int64_t out_size() const { return axis[0].count * axis[1].count * axis[2].count; }
  int64_t taps() const { return axis[0].kernel * axis[1].kernel * axis[2].kernel; }
  int64_t tap(int64_t d, int64_t h, int64_t w) const { return (d * axis[1].kernel + h) * axis[2].kernel + w; }
  int64_t input(int64_t d, int64_t h, int64_t w) const { return (d * axis[1].size + h) * axis[2].size + w; }
  int64_t output(int64_t d, int64_t h, int64_t w) const { return (d * axis[1].count + h) * axis[2].count + w; }
  bool is_whole() const {  // one window is the image
    return out_size() == 1 && taps() == in_size() && !axis[0].before && !axis[1].before && !axis[2].before;
  }
};

// By what to multiply the sum of each window for its mean.
template <class T>
std::vector<T> shares(const Pool& pool, bool count_padding) {
  const int64_t height = pool.axis[1].count, width = pool.axis[2].count;
  std::vector<T> parts(static_cast<size_t>(pool.out_size()), T(1) / T(pool.taps()));
  for (int64_t i = 0; i < pool.out_size() && !count_padding; ++i) {
    const int64_t at[] = {i / (height * width), i / width % height, i % width};
    int64_t inside = 1;
    for (int a = 0; a < 3; ++a) inside *= pool.axis[a].last(at[a]) - pool.axis[a].first(at[a]);
    parts[static_cast<size_t>(i)] = T(1) / T(inside);
  }
  return parts;
}

// Whether x replaces the maximum so far: the first NaN does, and then nothing.
template <class T>
MGE_INLINE bool is_better(T x, T best) {
  return !(x <= best) & (best == best);
}

// A tap of a window: where it lies, and which one it is.
struct PoolTap {
  int64_t at;
  int32_t tap;
};

// Lists the taps `first` to `last` - 1 along the row, of a row of windows, that lie in the image, in row-major order:
// `at` counts from where tap 0 of the window is in row 0. Returns their end.
inline PoolTap* list_taps(const Pool& pool, int64_t od, int64_t oh, int64_t first, int64_t last, PoolTap* to) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1];
  for (int64_t d = D.first(od); d < D.last(od); ++d)
    for (int64_t h = H.first(oh); h < H.last(oh); ++h) {
      const int64_t row = pool.input(od * D.stride + d - D.before, oh * H.stride + h - H.before, 0);
      for (int64_t w = first; w < last; ++w)
        *to++ = {(row + w) * pool.channels, static_cast<int32_t>(pool.tap(d, h, w))};
    }
  return to;
}

// The maxima of any number of channels, one by one.
template <class T, class I>
void max_strip(const T* x, const PoolTap* begin, const PoolTap* end, int64_t size, T* y, I* index) {
  for (int64_t j = 0; j < size; ++j) {
    T best = x[begin->at + j];
    int32_t place = begin->tap;
    for (const PoolTap* t = begin + 1; t < end; ++t)
      if (is_better(x[t->at + j], best)) best = x[t->at + j], place = t->tap;
    y[j] = best;
    if (index) index[j] = static_cast<I>(place);
  }
}

// For floats, stride 1 and 2 along the row are constants of their loops.
template <class T, class F>
MGE_INLINE void with_stride(int64_t stride, F&& f) {
  if constexpr (std::is_floating_point_v<T>) {
    if (stride == 1) return f(std::integral_constant<int64_t, 1>());
    if (stride == 2) return f(std::integral_constant<int64_t, 2>());
  }
  f(stride);
}

// Calls row(image, d, h) for each row of `depth` x `height`; `work` elements each.
template <class F>
void over_rows(int64_t images, int64_t depth, int64_t height, int64_t work, F&& row) {
  const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, work));
  parallel_for(images * depth * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) row(i / (depth * height), i / height % depth, i % height);
  });
}

template <class T, class I>
void max_pool(const Pool& pool, const T* x, T* y, I* index) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1], &W = pool.axis[2];
  over_rows(pool.images, D.count, H.count, W.count * pool.taps(), [&](int64_t image, int64_t od, int64_t oh) {
    const int64_t out = image * pool.out_size() + pool.output(od, oh, 0);
    for (int64_t begin = 0; begin < W.count; begin += kPoolStrip) {
      const int64_t end = std::min(W.count, begin + kPoolStrip);
      T best[kPoolStrip], odd[kPoolStrip] = {};  // `odd` becomes NaN where there is one
      int32_t place[kPoolStrip];
      for (int64_t o = begin; o < end; ++o)
        best[o - begin] = Largest::start<T>,
                     place[o - begin] = static_cast<int32_t>(pool.tap(D.first(od), H.first(oh), W.first(o)));
      for (int64_t d = D.first(od); d < D.last(od); ++d)
        for (int64_t h = H.first(oh); h < H.last(oh); ++h) {
          const T* row = x + image * pool.in_size() +
                         pool.input(od * D.stride + d - D.before, oh * H.stride + h - H.before, 0);
          for (int64_t w = 0; w < W.kernel; ++w) {
            const int32_t tap = static_cast<int32_t>(pool.tap(d, h, w));
            const int64_t from = std::max(begin, W.from(w)), to = std::min(end, W.to(w));
            with_stride<T>(W.stride, [&](auto stride) {
              const T* p = row + w - W.before;
              for (int64_t o = from; o < to; ++o) {
                const T v = p[o * stride];
                place[o - begin] = v > best[o - begin] ? tap : place[o - begin];
                best[o - begin] = v > best[o - begin] ? v : best[o - begin];
                odd[o - begin] += v;
              }
            });
          }
        }
      T all = 0;
      for (int64_t o = begin; o < end; ++o) {
        y[out + o] = best[o - begin];
        if (index) index[out + o] = static_cast<I>(place[o - begin]);
        all += odd[o - begin];
      }
      if (all == all) continue;
      std::vector<PoolTap> taps(static_cast<size_t>(pool.taps()));
      for (int64_t o = begin; o < end; ++o)
        max_strip(x + image * pool.in_size() + o * W.stride - W.before, taps.data(),
                  list_taps(pool, od, oh, W.first(o), W.last(o), taps.data()), 1, y + out + o,
                  index ? index + out + o : nullptr);
    }
  });
}

template <class T>
void avg_pool(const Pool& pool, const T* x, T* y, bool count_padding) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1], &W = pool.axis[2];
  if (pool.is_whole()) {
    over_rows(pool.images, 1, 1, pool.taps(), [&](int64_t image, int64_t, int64_t) {
      y[image] = fold<Sum>(x + image * pool.taps(), pool.taps()) / T(pool.taps());
    });
    return;
  }
  const std::vector<T> parts = shares<T>(pool, count_padding);
  over_rows(pool.images, D.count, H.count, W.count * pool.taps(), [&](int64_t image, int64_t od, int64_t oh) {
    T* total = y + image * pool.out_size() + pool.output(od, oh, 0);
    std::fill(total, total + W.count, T(0));
    for (int64_t d = D.first(od); d < D.last(od); ++d)
      for (int64_t h = H.first(oh); h < H.last(oh); ++h) {
        const T* row = x + image * pool.in_size() +
                       pool.input(od * D.stride + d - D.before, oh * H.stride + h - H.before, 0);
        for (int64_t w = 0; w < W.kernel; ++w)
          with_stride<T>(W.stride, [&](auto stride) {
            const T* p = row + w - W.before;
            for (int64_t o = W.from(w), to = W.to(w); o < to; ++o) total[o] += p[o * stride];
          });
      }
    for (int64_t o = 0; o < W.count; ++o) total[o] *= parts[pool.output(od, oh, o)];
  });
}

// For each row of the input and each window row over it, add(dx row, offset of the window row, d, h, od, oh).
template <class T, class F>
void gather_rows(const Pool& pool, T* dx, F&& add) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1], &W = pool.axis[2];
  over_rows(pool.images, D.size, H.size, W.size * W.kernel, [&](int64_t image, int64_t id, int64_t ih) {
    T* row = dx + image * pool.in_size() + pool.input(id, ih, 0);
    std::fill(row, row + W.size, T(0));
    for (int64_t od = D.low(id); od < D.high(id); ++od)
      for (int64_t oh = H.low(ih); oh < H.high(ih); ++oh)
        add(row, image * pool.out_size() + pool.output(od, oh, 0), id + D.before - od * D.stride,
            ih + H.before - oh * H.stride, od, oh);
  });
}

template <class T, class I>
void max_pool_backward(const Pool& pool, const I* index, const T* dy, T* dx) {
  const PoolAxis& W = pool.axis[2];
  gather_rows(pool, dx, [&](T* row, int64_t at, int64_t d, int64_t h, int64_t, int64_t) {
    for (int64_t w = 0; w < W.kernel; ++w) {
      const I tap = static_cast<I>(pool.tap(d, h, w));
      with_stride<T>(W.stride, [&](auto stride) {
        T* to = row + w - W.before;
        for (int64_t o = W.from(w), last = W.to(w); o < last; ++o)
          to[o * stride] += index[at + o] == tap ? dy[at + o] : T(0);
      });
    }
  });
}

template <class T>
void avg_pool_backward(const Pool& pool, const T* dy, T* dx, bool count_padding) {
  const PoolAxis& W = pool.axis[2];
  const std::vector<T> parts = shares<T>(pool, count_padding);
  gather_rows(pool, dx, [&](T* row, int64_t at, int64_t, int64_t, int64_t od, int64_t oh) {
    const T* part = parts.data() + pool.output(od, oh, 0);
    for (int64_t w = 0; w < W.kernel; ++w)
      with_stride<T>(W.stride, [&](auto stride) {
        T* to = row + w - W.before;
        for (int64_t o = W.from(w), last = W.to(w); o < last; ++o) to[o * stride] += dy[at + o] * part[o];
      });
  });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_POOL_HPP
