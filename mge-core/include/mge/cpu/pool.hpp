// mge/cpu/pool.hpp: maxima and means of windows over one to three spatial axes, and their gradients.
//
// In: images (n, c, *size), or (n, *size, c) with the channels last. Out: the pooled images, and back.
// Channels last work on strips of channels, the others on rows of the image. The gradients gather: each element of the
// input looks for the windows that it is in, so no two threads write to one place.
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

// ---- Channels last ----

// A pixel of a window, or a window of a pixel: where it begins, and which tap it is.
struct PoolTap {
  int64_t at;
  int32_t tap;
};

// Calls pixel(image, d, h, w, taps) for all pixels of `size` = (depth, height, width); `taps` is room for `most`.
template <class F>
void over_pixels(int64_t images, const int64_t (&size)[3], int64_t work, int64_t most, F&& pixel) {
  const int64_t depth = size[0], height = size[1], width = size[2];
  const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, work * width));
  parallel_for(images * depth * height, grain, [&](int64_t begin, int64_t end) {
    std::vector<PoolTap> taps(static_cast<size_t>(most));
    for (int64_t i = begin; i < end; ++i)
      for (int64_t w = 0; w < width; ++w) pixel(i / (depth * height), i / height % depth, i % height, w, taps.data());
  });
}

// Lists the taps of a window that lie in the image, in row-major order; returns their end.
inline PoolTap* list_taps(const Pool& pool, int64_t od, int64_t oh, int64_t ow, PoolTap* to) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1], &W = pool.axis[2];
  const int64_t left = ow * W.stride - W.before, first = W.first(ow), last = W.last(ow);
  for (int64_t d = D.first(od); d < D.last(od); ++d)
    for (int64_t h = H.first(oh); h < H.last(oh); ++h) {
      const int64_t row = pool.input(od * D.stride + d - D.before, oh * H.stride + h - H.before, left);
      const int64_t tap = pool.tap(d, h, 0);
      for (int64_t w = first; w < last; ++w) *to++ = {(row + w) * pool.channels, static_cast<int32_t>(tap + w)};
    }
  return to;
}

// Lists the windows in which a pixel of the image lies; returns their end.
inline PoolTap* list_windows(const Pool& pool, int64_t id, int64_t ih, int64_t iw, PoolTap* to) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1], &W = pool.axis[2];
  const int64_t d1 = D.high(id), h0 = H.low(ih), h1 = H.high(ih), w0 = W.low(iw), w1 = W.high(iw);
  for (int64_t od = D.low(id); od < d1; ++od)
    for (int64_t oh = h0; oh < h1; ++oh)
      for (int64_t ow = w0; ow < w1; ++ow)
        *to++ = {pool.output(od, oh, ow) * pool.channels,
                 static_cast<int32_t>(pool.tap(id + D.before - od * D.stride, ih + H.before - oh * H.stride,
                                               iw + W.before - ow * W.stride))};
  return to;
}

// Calls strip(from, U, m) for strips of U vectors of channels; m is how many lanes count, as in `walk`.
template <class F>
MGE_INLINE void over_strips(int64_t c, F&& strip) {
  int64_t from = 0;
  for (; from + 4 * kWidth <= c; from += 4 * kWidth)
    strip(from, std::integral_constant<int, 4>(), Lane<float>::Whole());
  for (; from + kWidth <= c; from += kWidth) strip(from, std::integral_constant<int, 1>(), Lane<float>::Whole());
  if (from < c) strip(from, std::integral_constant<int, 1>(), c - from);
}

typedef uint8_t vbytes __attribute__((vector_size(kWidth)));
// GCC widens bytes one by one.
MGE_INLINE vi load_places(const uint8_t* p) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#elif defined(__SSE4_1__)
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return (vi)_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
#else
  return __builtin_convertvector(load_as<vbytes>(p), vi);
#endif
}
MGE_INLINE vi load_places(const int32_t* p) { return load(p); }
MGE_INLINE void store_places(uint8_t* p, vi v) {
  const vbytes narrow = __builtin_convertvector(v, vbytes);
  std::memcpy(p, &narrow, sizeof narrow);
}
MGE_INLINE void store_places(int32_t* p, vi v) { store(p, v); }

template <class I>
MGE_INLINE vi load_places(const I* p, Lane<float>::Whole) {
  return load_places(p);
}
template <class I>
MGE_INLINE vi load_places(const I* p, int64_t n) {
  I lanes[kWidth] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(I));
  return load_places(lanes);
}
template <class I>
MGE_INLINE void store_places(I* p, vi v, Lane<float>::Whole) {
  store_places(p, v);
}
template <class I>
MGE_INLINE void store_places(I* p, vi v, int64_t n) {
  I lanes[kWidth];
  store_places(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(I));
}

// The maxima of any number of channels, one by one.
template <class T, class I>
void max_strip(const T* x, const PoolTap* begin, const PoolTap* end, int64_t size, T* y, I* index) {
  for (int64_t j = 0; j < size; ++j) {
    T best = x[begin->at + j];
    int32_t place = begin->tap;
    for (const PoolTap* t = begin + 1; t < end; ++t)
      if (is_better(x[t->at + j], best)) best = x[t->at + j], place = t->tap;
    y[j] = best, index[j] = static_cast<I>(place);
  }
}

template <class T, class I>
void max_pool_last(const Pool& pool, const T* x, T* y, I* index) {
  using L = Lane<float>;
  const int64_t c = pool.channels, counts[] = {pool.axis[0].count, pool.axis[1].count, pool.axis[2].count};
  over_pixels(pool.images, counts, pool.taps() * c, pool.taps(),
              [&](int64_t image, int64_t od, int64_t oh, int64_t ow, PoolTap* taps) {
    const PoolTap* end = list_taps(pool, od, oh, ow, taps);
    const T* from_image = x + image * pool.in_size() * c;
    const int64_t out = (image * pool.out_size() + pool.output(od, oh, ow)) * c;
    const auto rest = [&](int64_t from, int64_t size) {
      max_strip(from_image + from, taps, end, size, y + out + from, index + out + from);
    };
    if constexpr (std::is_same_v<T, float>)
      over_strips(c, [&](int64_t from, auto count, auto m) {
        constexpr int U = decltype(count)::value;
        vf best[U], odd[U];  // `odd` becomes NaN where there is one
        vi place[U];
        MGE_UNROLL
        for (int u = 0; u < U; ++u)
          odd[u] = best[u] = L::get(from_image + taps->at + from + u * kWidth, m), place[u] = vi{} + taps->tap;
        for (const PoolTap* t = taps + 1; t < end; ++t)
          MGE_UNROLL
          for (int u = 0; u < U; ++u) {
            prefetch(from_image + t->at + from + u * kWidth);
            const vf v = L::get(from_image + t->at + from + u * kWidth, m);
            place[u] = v > best[u] ? vi{} + t->tap : place[u];
            best[u] = v > best[u] ? v : best[u];
            odd[u] += v;
          }
        vf all = odd[0];
        MGE_UNROLL
        for (int u = 1; u < U; ++u) all += odd[u];
        if (fold_lanes<Sum, float, sizeof all>(&all) != fold_lanes<Sum, float, sizeof all>(&all))
          return rest(from, U > 1 ? U * kWidth : static_cast<int64_t>(m));
        MGE_UNROLL
        for (int u = 0; u < U; ++u) {
          L::put(y + out + from + u * kWidth, best[u], m);
          store_places(index + out + from + u * kWidth, place[u], m);
        }
      });
    else
      rest(0, c);
  });
}

template <class T>
void avg_pool_last(const Pool& pool, const T* x, T* y, bool count_padding) {
  using L = Lane<float>;
  const int64_t c = pool.channels, counts[] = {pool.axis[0].count, pool.axis[1].count, pool.axis[2].count};
  over_pixels(pool.images, counts, pool.taps() * c, pool.taps(),
              [&](int64_t image, int64_t od, int64_t oh, int64_t ow, PoolTap* taps) {
    const PoolTap* end = list_taps(pool, od, oh, ow, taps);
    const T part = T(1) / T(count_padding ? pool.taps() : end - taps), *from_image = x + image * pool.in_size() * c;
    T* out = y + (image * pool.out_size() + pool.output(od, oh, ow)) * c;
    const auto rest = [&](int64_t from, int64_t size) {
      T total[kPoolStrip] = {};
      for (const PoolTap* t = taps; t < end; ++t)
        for (int64_t j = 0; j < size; ++j) total[j] += from_image[t->at + from + j];
      for (int64_t j = 0; j < size; ++j) out[from + j] = total[j] * part;
    };
    if constexpr (std::is_same_v<T, float>)
      over_strips(c, [&](int64_t from, auto count, auto m) {
        constexpr int U = decltype(count)::value;
        vf total[U] = {};
        for (const PoolTap* t = taps; t < end; ++t)
          MGE_UNROLL
          for (int u = 0; u < U; ++u) {
            prefetch(from_image + t->at + from + u * kWidth);
            total[u] += L::get(from_image + t->at + from + u * kWidth, m);
          }
        MGE_UNROLL
        for (int u = 0; u < U; ++u) L::put(out + from + u * kWidth, total[u] * part, m);
      });
    else
      for (int64_t from = 0; from < c; from += kPoolStrip) rest(from, std::min(kPoolStrip, c - from));
  });
}

template <class T, class I>
void max_pool_last_backward(const Pool& pool, const I* index, const T* dy, T* dx) {
  using L = Lane<float>;
  const int64_t c = pool.channels, sizes[] = {pool.axis[0].size, pool.axis[1].size, pool.axis[2].size};
  over_pixels(pool.images, sizes, 2 * c, pool.taps(),
              [&](int64_t image, int64_t id, int64_t ih, int64_t iw, PoolTap* windows) {
    const PoolTap* end = list_windows(pool, id, ih, iw, windows);
    const T* g = dy + image * pool.out_size() * c;
    const I* places = index + image * pool.out_size() * c;
    T* to = dx + (image * pool.in_size() + pool.input(id, ih, iw)) * c;
    const auto rest = [&](int64_t from, int64_t size) {
      T total[kPoolStrip] = {};
      for (const PoolTap* t = windows; t < end; ++t)
        for (int64_t j = 0; j < size; ++j)
          total[j] += places[t->at + from + j] == static_cast<I>(t->tap) ? g[t->at + from + j] : T(0);
      std::copy(total, total + size, to + from);
    };
    if constexpr (std::is_same_v<T, float>)
      over_strips(c, [&](int64_t from, auto count, auto m) {
        constexpr int U = decltype(count)::value;
        vf total[U] = {};
        for (const PoolTap* t = windows; t < end; ++t)
          MGE_UNROLL
          for (int u = 0; u < U; ++u) {
            const int64_t at = t->at + from + u * kWidth;
            prefetch(g + at);
            total[u] += load_places(places + at, m) == t->tap ? L::get(g + at, m) : vf{};
          }
        MGE_UNROLL
        for (int u = 0; u < U; ++u) L::put(to + from + u * kWidth, total[u], m);
      });
    else
      for (int64_t from = 0; from < c; from += kPoolStrip) rest(from, std::min(kPoolStrip, c - from));
  });
}

template <class T>
void avg_pool_last_backward(const Pool& pool, const T* dy, T* dx, bool count_padding) {
  using L = Lane<float>;
  const int64_t c = pool.channels, sizes[] = {pool.axis[0].size, pool.axis[1].size, pool.axis[2].size};
  const std::vector<T> parts = shares<T>(pool, count_padding);
  over_pixels(pool.images, sizes, 2 * c, pool.taps(),
              [&](int64_t image, int64_t id, int64_t ih, int64_t iw, PoolTap* windows) {
    const PoolTap* end = list_windows(pool, id, ih, iw, windows);
    const T* g = dy + image * pool.out_size() * c;
    T* to = dx + (image * pool.in_size() + pool.input(id, ih, iw)) * c;
    const auto rest = [&](int64_t from, int64_t size) {
      std::fill(to + from, to + from + size, T(0));
      for (const PoolTap* t = windows; t < end; ++t)
        for (int64_t j = from; j < from + size; ++j) to[j] += g[t->at + j] * parts[t->at / c];
    };
    if constexpr (std::is_same_v<T, float>)
      over_strips(c, [&](int64_t from, auto count, auto m) {
        constexpr int U = decltype(count)::value;
        vf total[U] = {};
        for (const PoolTap* t = windows; t < end; ++t)
          MGE_UNROLL
          for (int u = 0; u < U; ++u) {
            prefetch(g + t->at + from + u * kWidth);
            total[u] += L::get(g + t->at + from + u * kWidth, m) * parts[t->at / c];
          }
        MGE_UNROLL
        for (int u = 0; u < U; ++u) L::put(to + from + u * kWidth, total[u], m);
      });
    else
      rest(0, c);
  });
}

// ---- Rows of images: for floats, stride 1 and 2 along the row are constants of their loops ----

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
        y[out + o] = best[o - begin], index[out + o] = static_cast<I>(place[o - begin]);
        all += odd[o - begin];
      }
      if (all == all) continue;
      std::vector<PoolTap> taps(static_cast<size_t>(pool.taps()));
      for (int64_t o = begin; o < end; ++o)
        max_strip(x + image * pool.in_size(), taps.data(), list_taps(pool, od, oh, o, taps.data()), 1, y + out + o,
                  index + out + o);
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
