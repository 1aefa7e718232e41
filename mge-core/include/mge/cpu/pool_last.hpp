// mge/cpu/pool_last.hpp: the pools of pool.hpp on images with the channels last.
//
// In: images (n, *size, c). Out: the pooled images, and back. Works on strips of channels; what the windows of a row have
// in common is found once a row.
// After pool.hpp.
#ifndef MGE_CPU_POOL_LAST_HPP
#define MGE_CPU_POOL_LAST_HPP

#include "mge/cpu/pool.hpp"

namespace mge::cpu {

constexpr int64_t kPoolPiece = 1 << 14;  // taps of channels that are worth a chunk

// ---- Strips ----

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
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const auto mask = static_cast<__mmask16>((1u << n) - 1);
  if constexpr (sizeof(I) == 1) return (vi)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, p));
  return (vi)_mm512_maskz_loadu_epi32(mask, p);
#else
  I lanes[kWidth] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(I));
  return load_places(lanes);
#endif
}
template <class I>
MGE_INLINE void store_places(I* p, vi v, Lane<float>::Whole) {
  store_places(p, v);
}
template <class I>
MGE_INLINE void store_places(I* p, vi v, int64_t n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const auto mask = static_cast<__mmask16>((1u << n) - 1);
  if constexpr (sizeof(I) == 1)
    _mm_mask_storeu_epi8(p, mask, _mm512_cvtepi32_epi8((__m512i)v));
  else
    _mm512_mask_storeu_epi32(p, mask, (__m512i)v);
#else
  I lanes[kWidth];
  store_places(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(I));
#endif
}

// ---- Rows ----

// A row of windows: the taps of those that lie within the image along the row are the same.
class WindowRow {
 public:
  explicit WindowRow(const Pool& pool) : pool_(pool), taps_(static_cast<size_t>(2 * pool.taps())) {}

  // Row `i` of all images; an image begins at `from` and its results at `to`.
  void move_to(int64_t i) {
    const int64_t depth = pool_.axis[0].count, height = pool_.axis[1].count;
    from = i / (depth * height) * pool_.in_size() * pool_.channels;
    to = i * pool_.axis[2].count * pool_.channels;
    od_ = i / height % depth, oh_ = i % height;
    whole_ = list_taps(pool_, od_, oh_, 0, pool_.axis[2].kernel, taps_.data());
  }

  // Calls window(x, y, taps, end) for each window: `x` is where tap 0 is in row 0, and `y` where its result is.
  template <class F>
  MGE_INLINE void windows(F&& window) {
    const PoolAxis& W = pool_.axis[2];
    const int64_t c = pool_.channels;
    for (int64_t o = 0; o < W.count; ++o) {
      const PoolTap *begin = taps_.data(), *end = whole_;
      const int64_t first = W.first(o), last = W.last(o);
      if (last - first < W.kernel) {
        PoolTap* room = taps_.data() + pool_.taps();
        begin = room, end = list_taps(pool_, od_, oh_, first, last, room);
      }
      window(from + (o * W.stride - W.before) * c, to + o * c, begin, end);
    }
  }

  int64_t from = 0, to = 0;

 private:
  const Pool& pool_;
  std::vector<PoolTap> taps_;
  PoolTap* whole_ = nullptr;
  int64_t od_ = 0, oh_ = 0;
};

// Calls row(row) for each row of windows.
template <class F>
void over_window_rows(const Pool& pool, F&& row) {
  const int64_t work = pool.taps() * pool.channels * pool.axis[2].count;
  const int64_t grain = std::max<int64_t>(1, kPoolPiece / std::max<int64_t>(1, work));
  parallel_for(pool.images * pool.axis[0].count * pool.axis[1].count, grain, [&](int64_t begin, int64_t end) {
    WindowRow mine(pool);
    for (int64_t i = begin; i < end; ++i) mine.move_to(i), row(mine);
  });
}

// The windows in which a pixel of the image lies.
struct PixelWindows {
  const PoolTap *rows, *end;  // rows of windows: where each begins, and which tap of its window 0 is in column 0
  int64_t first, last;        // windows of each row
  int64_t column, channels, stride;

  // Calls window(at, tap) for each.
  template <class F>
  MGE_INLINE void operator()(F&& window) const {
    for (const PoolTap* r = rows; r < end; ++r)
      for (int64_t o = first; o < last; ++o)
        window(r->at + o * channels, static_cast<int32_t>(r->tap + column - o * stride));
  }
};

// Calls pixel(image of windows, pixel, its windows) for each pixel of the images.
template <class F>
void over_pixels(const Pool& pool, F&& pixel) {
  const PoolAxis &D = pool.axis[0], &H = pool.axis[1], &W = pool.axis[2];
  const int64_t c = pool.channels, grain = std::max<int64_t>(1, kPoolPiece / std::max<int64_t>(1, 2 * c * W.size));
  parallel_for(pool.images * D.size * H.size, grain, [&](int64_t begin, int64_t end) {
    std::vector<PoolTap> rows(static_cast<size_t>(D.kernel * H.kernel));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / (D.size * H.size), id = i / H.size % D.size, ih = i % H.size;
      PoolTap* last = rows.data();
      for (int64_t od = D.low(id); od < D.high(id); ++od)
        for (int64_t oh = H.low(ih); oh < H.high(ih); ++oh)
          *last++ = {pool.output(od, oh, 0) * c,
                     static_cast<int32_t>(pool.tap(id + D.before - od * D.stride, ih + H.before - oh * H.stride, W.before))};
      for (int64_t w = 0; w < W.size; ++w)
        pixel(image * pool.out_size() * c, (i * W.size + w) * c,
              PixelWindows{rows.data(), last, W.low(w), W.high(w), w, c, W.stride});
    }
  });
}

// ---- Kernels ----

// The maxima of a row of windows, and where they are if `places`; what it returns has a NaN where x may have one.
template <bool places, class I>
vf max_row(WindowRow& row, int64_t c, const float* x, float* y, I* index) {
  using L = Lane<float>;
  vf odd = {};
  row.windows([&](int64_t at, int64_t to, const PoolTap* taps, const PoolTap* end) {
    over_strips(c, [&](int64_t from, auto count, auto m) {
      constexpr int U = decltype(count)::value;
      const float* p = x + at + from;
      vf best[U];
      vi place[U];
      MGE_UNROLL
      for (int u = 0; u < U; ++u) {
        best[u] = L::get(p + taps->at + u * kWidth, m), place[u] = vi{} + taps->tap;
        odd += best[u];
      }
      for (const PoolTap* t = taps + 1; t < end; ++t)
        MGE_UNROLL
        for (int u = 0; u < U; ++u) {
          prefetch(p + t->at + u * kWidth);
          const vf v = L::get(p + t->at + u * kWidth, m);
          if (places) place[u] = v > best[u] ? vi{} + t->tap : place[u];
          best[u] = max(v, best[u]);
          odd += v;
        }
      MGE_UNROLL
      for (int u = 0; u < U; ++u) {
        L::put(y + to + from + u * kWidth, best[u], m);
        if (places) store_places(index + to + from + u * kWidth, place[u], m);
      }
    });
  });
  return odd;
}

template <class T, class I>
void max_pool_last(const Pool& pool, const T* x, T* y, I* index) {
  const int64_t c = pool.channels;
  over_window_rows(pool, [&](WindowRow& row) {
    if constexpr (std::is_same_v<T, float>) {
      vf odd = index ? max_row<true>(row, c, x, y, index) : max_row<false>(row, c, x, y, index);
      if (const float all = sum(odd); all == all) return;
    }
    row.windows([&](int64_t from, int64_t to, const PoolTap* taps, const PoolTap* end) {
      max_strip(x + from, taps, end, c, y + to, index ? index + to : nullptr);
    });
  });
}

template <class T>
void avg_pool_last(const Pool& pool, const T* x, T* y, bool count_padding) {
  using L = Lane<float>;
  const int64_t c = pool.channels;
  over_window_rows(pool, [&](WindowRow& row) {
    row.windows([&](int64_t at, int64_t to, const PoolTap* taps, const PoolTap* end) {
      const T part = T(1) / T(count_padding ? pool.taps() : end - taps);
      if constexpr (std::is_same_v<T, float>) {
        over_strips(c, [&](int64_t from, auto count, auto m) {
          constexpr int U = decltype(count)::value;
          vf total[U] = {};
          for (const PoolTap* t = taps; t < end; ++t)
            MGE_UNROLL
            for (int u = 0; u < U; ++u) {
              prefetch(x + at + t->at + from + u * kWidth);
              total[u] += L::get(x + at + t->at + from + u * kWidth, m);
            }
          MGE_UNROLL
          for (int u = 0; u < U; ++u) L::put(y + to + from + u * kWidth, total[u] * part, m);
        });
      } else {
        std::fill(y + to, y + to + c, T(0));
        for (const PoolTap* t = taps; t < end; ++t)
          for (int64_t j = 0; j < c; ++j) y[to + j] += x[at + t->at + j];
        for (int64_t j = 0; j < c; ++j) y[to + j] *= part;
      }
    });
  });
}

template <class T, class I>
void max_pool_last_backward(const Pool& pool, const I* index, const T* dy, T* dx) {
  using L = Lane<float>;
  const int64_t c = pool.channels;
  over_pixels(pool, [&](int64_t image, int64_t to, const PixelWindows& windows) {
    if constexpr (std::is_same_v<T, float>) {
      over_strips(c, [&](int64_t from, auto count, auto m) {
        constexpr int U = decltype(count)::value;
        vf total[U] = {};
        windows([&](int64_t window, int32_t tap) {
          MGE_UNROLL
          for (int u = 0; u < U; ++u) {
            const int64_t at = image + window + from + u * kWidth;
            prefetch(dy + at);
            total[u] += load_places(index + at, m) == tap ? L::get(dy + at, m) : vf{};
          }
        });
        MGE_UNROLL
        for (int u = 0; u < U; ++u) L::put(dx + to + from + u * kWidth, total[u], m);
      });
    } else {
      std::fill(dx + to, dx + to + c, T(0));
      windows([&](int64_t window, int32_t tap) {
        const int64_t at = image + window;
        for (int64_t j = 0; j < c; ++j) dx[to + j] += index[at + j] == static_cast<I>(tap) ? dy[at + j] : T(0);
      });
    }
  });
}

template <class T>
void avg_pool_last_backward(const Pool& pool, const T* dy, T* dx, bool count_padding) {
  using L = Lane<float>;
  const int64_t c = pool.channels;
  const std::vector<T> parts = shares<T>(pool, count_padding);
  over_pixels(pool, [&](int64_t image, int64_t to, const PixelWindows& windows) {
    if constexpr (std::is_same_v<T, float>) {
      over_strips(c, [&](int64_t from, auto count, auto m) {
        constexpr int U = decltype(count)::value;
        vf total[U] = {};
        windows([&](int64_t window, int32_t) {
          const float part = parts[static_cast<size_t>(window / c)];
          MGE_UNROLL
          for (int u = 0; u < U; ++u) {
            prefetch(dy + image + window + from + u * kWidth);
            total[u] += L::get(dy + image + window + from + u * kWidth, m) * part;
          }
        });
        MGE_UNROLL
        for (int u = 0; u < U; ++u) L::put(dx + to + from + u * kWidth, total[u], m);
      });
    } else {
      std::fill(dx + to, dx + to + c, T(0));
      windows([&](int64_t window, int32_t) {
        const T part = parts[static_cast<size_t>(window / c)];
        for (int64_t j = 0; j < c; ++j) dx[to + j] += dy[image + window + j] * part;
      });
    }
  });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_POOL_LAST_HPP
