// mge/cpu/tile.hpp: the microkernel. Matrix products, convolutions and their gradients are made of it.
//
// In: a Tile, which says where both sides, the results and the additions lie. Out: a tile of results,
//
//   y[r, c] = activation(sum over taps t and terms k of a[t][r, k] * b[t][k, c]  + bias[c] + residual[r, c])
//
// for up to kRows rows and up to kColumns columns, all sums in registers. Nothing is padded or packed on the left.
//
//   run_tile<>(tile, rows)                A by rows:     a[r, k] = a[r * a_row + k]    (activations, NHWC)
//   run_tile<Left::kColumns>(tile, rows)  A by columns:  a[r, k] = a[k * a_step + r]   (a transposed left side)
//   run_tile<Left::kPacked>(tile, rows)   the same with a_step = 16, a little faster
//   ..., Right::kPacked (default)         B packed:      b[k, c] = b[(c / 16) * b_block + k * 16 + c % 16]
//   ..., Right::kRows                     B as it is:    b[k, c] = b[k * b_step + c]
//
// Of B, whole vectors are read (columns rounded up to kWidth), of bias, residual and y no column past `columns`.
// Taps move both sides: tap t adds taps[t].a to a and taps[t].b to b. A 3x3 convolution has one tap a row of the
// kernel, and kw * channels terms, since these lie together in NHWC. A plain product has the one tap {0, 0}.
// Rows kRows / 2 and up may start elsewhere (two short rows of an image in one tile): a_jump = kHalf * a_row else.
// A longer sum continues in another call with `add`.
#ifndef MGE_CPU_TILE_HPP
#define MGE_CPU_TILE_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

#if defined(__AVX512F__)
constexpr int kRows = 14;
#elif defined(__FMA__) || defined(__aarch64__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;  // a product needs a register of its own
#endif
constexpr int kVectors = 2;                   // results a row of the tile, in vectors
constexpr int kColumns = kVectors * kWidth;   // 32, 16, 8
constexpr int kHalf = kRows / 2;

struct Tap {
  ptrdiff_t a, b;  // floats
};

struct Tile {
  const float* a;
  ptrdiff_t a_row, a_jump;  // to the next row; to row kHalf
  ptrdiff_t a_step;         // to the next term, A by columns
  const float* b;
  ptrdiff_t b_block;        // to the next 16 columns, B packed
  ptrdiff_t b_step;         // to the next term, B as it is
  const Tap* taps;
  int64_t tap_count, depth;

  float* y;
  ptrdiff_t y_row;
  int64_t columns;  // 1 .. kColumns
  bool add;         // the sums begin with what y holds
  bool clip;        // results are kept in low .. high
  float low, high;
  const float* bias;      // (optional) one a column
  const float* residual;  // (optional) as y, its own rows
  ptrdiff_t residual_row;

  const float* ahead;  // what is read of packed B after this tile: `ahead_terms` rows of 16 (0: nothing)
  int64_t ahead_terms;

  // Tile i of n fetches its part of `terms` rows at `next`, and as many of the block after it, while it computes, so that
  // B comes from memory in time. One run after the other: of two, the processor would foresee neither.
  void fetch(const float* next, int64_t terms, int64_t i, int64_t n) {
    const int64_t half = n / 2;
    if (i >= half)
      next += b_block, i -= half, n -= half;
    else
      n = half;
    const int64_t begin = terms * i / n;
    ahead = next + begin * kBlock, ahead_terms = terms * (i + 1) / n - begin;
  }
};

enum class Left { kRows, kColumns, kPacked };
enum class Right { kPacked, kRows };

// Keeps the compiler from splitting an address into many pointers, which would not fit the registers.
template <class T>
MGE_INLINE void opaque(T& value) {
  asm volatile("" : "+r"(value));
}

// sum += a * b. As one instruction in place: GCC's own choice among the three forms costs moves and stack space.
MGE_INLINE void accumulate(vf& sum, vf a, vf b) {
#if defined(__FMA__)
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
  sum = fma(a, b, sum);
#endif
}

template <int R, int V, Left left, Right right>
struct Microkernel {
  static constexpr int kUnroll = 4;

  // Four byte strides reach 7 rows from one pointer: 0, s, 2s, s3, 4s, s5, 2 * s3.
  struct Rows {
    ptrdiff_t s, s3, s5;
  };
  static MGE_INLINE ptrdiff_t offset(const Rows& rows, int r) {
    return r == 0 ? 0 : r == 1 ? rows.s : r == 2 ? 2 * rows.s : r == 3 ? rows.s3 : r == 4 ? 4 * rows.s
         : r == 5 ? rows.s5 : 2 * rows.s3;
  }

  // Where the next terms lie.
  struct Sides {
    const char *low, *high;    // A from row 0 and from row kHalf
    const char *b0, *b1;       // B, and its second block
    ptrdiff_t a_step, b_step;  // to the next term, in bytes

    MGE_INLINE void advance(int terms) {
      low += terms * a_step, high += terms * a_step, b0 += terms * b_step, b1 += terms * b_step;
    }
  };

  // Term number k from where `at` points: a displacement in the instructions, where the steps are constants.
  static MGE_INLINE void term(vf (&acc)[R][V], const Sides& at, const Rows& rows, int k) {
    vf weight[V];
    MGE_UNROLL
    for (int v = 0; v < V; ++v) {
      constexpr int kEach = right == Right::kRows || V * kWidth <= kBlock ? V : kBlock / kWidth;  // vectors a block
      const char* b = (v / kEach ? at.b1 : at.b0) + v % kEach * sizeof(vf) + k * at.b_step;
      weight[v] = load(reinterpret_cast<const float*>(b));
    }
    MGE_UNROLL
    for (int r = 0; r < R; ++r) {
      const char* a = left != Left::kRows ? at.low + 4 * r
                      : r < kHalf            ? at.low + offset(rows, r)
                                             : at.high + offset(rows, r - kHalf);
      vf x = splat(*reinterpret_cast<const float*>(a + k * at.a_step));
      MGE_UNROLL
      for (int v = 0; v < V; ++v) accumulate(acc[r][v], x, weight[v]);
    }
  }

  static void run(const Tile& tile) {
    MGE_UNROLL
    for (int r = 0; r < R; ++r)  // the results' lines arrive while the sums are made
      MGE_UNROLL
      for (int c = 0; c < V * kWidth; c += 16) __builtin_prefetch(tile.y + r * tile.y_row + c, 1);
    if (tile.residual)
      MGE_UNROLL
      for (int r = 0; r < R; ++r)
        MGE_UNROLL
        for (int c = 0; c < V * kWidth; c += 16) __builtin_prefetch(tile.residual + r * tile.residual_row + c);
    vf acc[R][V];
    if (tile.add) {
      each(acc, [&](vf& sum, int r, int v, int64_t n) { sum = take(tile.y + r * tile.y_row + v * kWidth, n); }, tile);
    } else {
      MGE_UNROLL
      for (int r = 0; r < R; ++r)
        MGE_UNROLL
        for (int v = 0; v < V; ++v) acc[r][v] = vf{};
    }
    constexpr bool kFixed = left != Left::kColumns && right == Right::kPacked;  // both steps are constants
    Rows rows{4 * tile.a_row, 12 * tile.a_row, 20 * tile.a_row};
    const char *ahead = reinterpret_cast<const char*>(tile.ahead);
    int64_t fetches = right == Right::kPacked ? tile.ahead_terms : 0;
    Sides at;
    at.a_step = left == Left::kRows ? 4 : left == Left::kPacked ? 4 * kBlock : 4 * tile.a_step;
    at.b_step = right == Right::kPacked ? 4 * kBlock : 4 * tile.b_step;
    for (int64_t t = 0; t < tile.tap_count; ++t) {
      at.low = reinterpret_cast<const char*>(tile.a + tile.taps[t].a), at.high = at.low + 4 * tile.a_jump;
      at.b0 = reinterpret_cast<const char*>(tile.b + tile.taps[t].b), at.b1 = at.b0 + 4 * tile.b_block;
      int64_t k = tile.depth;
      for (; k >= kUnroll; k -= kUnroll) {
        opaque(rows.s), opaque(rows.s3), opaque(rows.s5);
        MGE_UNROLL
        for (int i = 0; i < kUnroll; ++i) {
          opaque(at.low), opaque(at.high), opaque(at.b0), opaque(at.b1);
          term(acc, at, rows, kFixed ? i : 0);
          if (!kFixed) at.advance(1);
        }
        if (kFixed) at.advance(kUnroll);
        if (right == Right::kPacked && fetches > 0) {
          constexpr int kLine = 4 * kBlock;
          __builtin_prefetch(ahead, 0, 3), __builtin_prefetch(ahead + kLine, 0, 3);
          __builtin_prefetch(ahead + 2 * kLine, 0, 3), __builtin_prefetch(ahead + 3 * kLine, 0, 3);
          ahead += 4 * kLine, fetches -= 4;
        }
      }
      for (; k > 0; --k) {
        opaque(rows.s), opaque(rows.s3), opaque(rows.s5);
        term(acc, at, rows, 0);
        at.advance(1);
      }
    }
    finish(acc, tile);
  }

  static MGE_INLINE vf take(const float* p, int64_t n) { return n >= kWidth ? load(p) : load_n(p, n); }

  // body(sum, row, vector, columns of it) for the vectors that have columns.
  template <class Body>
  static MGE_INLINE void each(vf (&acc)[R][V], Body body, const Tile& tile) {
    MGE_UNROLL
    for (int v = 0; v < V; ++v) {
      int64_t n = tile.columns - v * kWidth;
      if (n >= kWidth) {
        MGE_UNROLL
        for (int r = 0; r < R; ++r) body(acc[r][v], r, v, kWidth);
      } else {
        n = n < 0 ? 0 : n;
        MGE_UNROLL
        for (int r = 0; r < R; ++r) body(acc[r][v], r, v, n);
      }
    }
  }

  static MGE_INLINE void finish(vf (&acc)[R][V], const Tile& tile) {
    if (tile.bias)
      each(acc, [&](vf& sum, int, int v, int64_t n) { sum += take(tile.bias + v * kWidth, n); }, tile);
    if (tile.residual)
      each(acc, [&](vf& sum, int r, int v, int64_t n) {
        sum += take(tile.residual + r * tile.residual_row + v * kWidth, n);
      }, tile);
    if (tile.clip) {
      vf low = splat(tile.low), high = splat(tile.high);
      each(acc, [&](vf& sum, int, int, int64_t) { sum = min(high, max(low, sum)); }, tile);  // NaN stays
    }
    each(acc, [&](vf& sum, int r, int v, int64_t n) {
      float* y = tile.y + r * tile.y_row + v * kWidth;
      n >= kWidth ? store(y, sum) : store_n(y, sum, n);
    }, tile);
  }
};

using TileFunction = void (*)(const Tile&);

template <int V, Left left, Right right, size_t... R>
constexpr std::array<TileFunction, sizeof...(R)> tile_functions(std::index_sequence<R...>) {
  return {Microkernel<static_cast<int>(R) + 1, V, left, right>::run...};
}

// Makes a tile of 1 .. kRows rows.
template <Left left = Left::kRows, Right right = Right::kPacked>
void run_tile(const Tile& tile, int64_t rows) {
  static constexpr auto narrow = tile_functions<1, left, right>(std::make_index_sequence<kRows>());
  static constexpr auto wide = tile_functions<kVectors, left, right>(std::make_index_sequence<kRows>());
  (tile.columns <= kWidth ? narrow : wide)[static_cast<size_t>(rows - 1)](tile);
}

// The forms in use. One source of a library defines MGE_TILES before it includes this, and compiles them for all.
#ifdef MGE_TILES
#define MGE_TILE_FORM template
#else
#define MGE_TILE_FORM extern template
#endif
MGE_TILE_FORM void run_tile<Left::kRows, Right::kPacked>(const Tile&, int64_t);
MGE_TILE_FORM void run_tile<Left::kColumns, Right::kPacked>(const Tile&, int64_t);
MGE_TILE_FORM void run_tile<Left::kPacked, Right::kPacked>(const Tile&, int64_t);
MGE_TILE_FORM void run_tile<Left::kColumns, Right::kRows>(const Tile&, int64_t);
#undef MGE_TILE_FORM

// A plain product: one tap, nothing added.
inline Tile plain_tile() {
  static const Tap origin{0, 0};
  Tile tile{};
  tile.taps = &origin, tile.tap_count = 1;
  tile.low = -std::numeric_limits<float>::infinity(), tile.high = std::numeric_limits<float>::infinity();
  return tile;
}

// Rows cut into as few and as equal tiles as can be.
struct RowRange {
  int64_t begin, rows;
};
class RowTiles {
 public:
  explicit RowTiles(int64_t rows)
      : count_((rows + kRows - 1) / kRows), each_(rows / std::max<int64_t>(1, count_)), larger_(rows - count_ * each_) {}
  int64_t count() const { return count_; }
  RowRange operator[](int64_t i) const { return {i * each_ + std::min(i, larger_), each_ + (i < larger_)}; }

 private:
  int64_t count_, each_, larger_;
};
inline int64_t tile_count(int64_t rows) { return RowTiles(rows).count(); }
inline RowRange tile_rows(int64_t rows, int64_t i) { return RowTiles(rows)[i]; }

}  // namespace mge::cpu

#endif  // MGE_CPU_TILE_HPP
