// mge/cpu/attention.hpp: softmax(scale q k^T + mask) v and its gradient, for one matrix each of q, k and v.
//
// In: a Head, and the queries to work on. Out: rows of the result, or of the gradients. After tile.hpp and gemm.hpp.
//
// The scores of a tile of queries are made, turned into weights and used while they lie in the level-1 cache. Keys come
// in blocks that fit the level-2 cache; each row keeps its largest score and its sum so far (the running softmax), and
// what it has of its result is rescaled when a later block holds a larger score.
// The gradient takes blocks of queries with all keys: it needs whole rows of weights, and sums over queries.
#ifndef MGE_CPU_ATTENTION_HPP
#define MGE_CPU_ATTENTION_HPP

#include "mge/cpu/gemm.hpp"
#include "mge/cpu/math.hpp"

namespace mge::cpu::attention {

template <class T>
struct RowsOf {
  T* at;
  ptrdiff_t step;  // between rows; what is in a row is adjacent

  T* operator[](int64_t i) const { return at + i * step; }
};

struct Mask {
  const uint8_t* seen;    // (optional) 0 where a key is not seen
  const float* added;     // (optional) added to the scores
  ptrdiff_t row, column;  // steps in elements, 0 where it repeats
};

struct Head {
  int64_t queries, keys, width, depth;  // q is (queries, width), k (keys, width), v (keys, depth)
  RowsOf<const float> q, k, v;
  Mask mask;
  float scale;
  bool causal;  // query i sees keys 0 .. i

  // How many of the first `count` keys one of the queries before `end` sees.
  int64_t reach(int64_t end, int64_t count) const { return causal ? std::min(count, end) : count; }
};

constexpr float kLowest = std::numeric_limits<float>::lowest();

// exp(x) for x <= 0, and 0 where that is below all numbers. It may err by |x| * 1e-7 of itself, which exp may not.
MGE_INLINE vf falling_exp(vf x) {
  vf t = max(splat(-150.0f), x * 1.44269504f), n = round(t);  // a NaN stays
  vf p = polynomial(t - n, 1.0f, 6.931469776e-1f, 2.402224208e-1f, 5.550733745e-2f, 9.671512812e-3f, 1.326472721e-3f);
  return scale(p, n);
}

// body(i, part) for the vectors of n floats, a multiple of kWidth; neighbours get different parts, 0 .. 3.
template <class Body>
MGE_INLINE void vectors(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth)
    MGE_UNROLL
    for (int u = 0; u < 4; ++u) body(i + u * kWidth, u);
  for (; i < n; i += kWidth) body(i, 0);
}
MGE_INLINE float sum(const vf (&part)[4]) { return cpu::sum((part[0] + part[1]) + (part[2] + part[3])); }

// A row's softmax so far.
struct Running {
  float top = kLowest, total = 0;

  // Replaces n more scores by exp(score - top). Returns what earlier ones, relative to the earlier top, are times now.
  MGE_INLINE float take(float* x, int64_t n) {
    vf most[4] = {splat(top), splat(top), splat(top), splat(top)}, part[4] = {};
    vectors(n, [&](int64_t i, int u) { most[u] = max(load(x + i), most[u]); });
    const float before = top;
    top = max_lane(max(max(most[0], most[1]), max(most[2], most[3])));
    vf zero = splat(top);
    vectors(n, [&](int64_t i, int u) {
      vf e = falling_exp(load(x + i) - zero);
      store(x + i, e);
      part[u] += e;
    });
    const float factor = before == top ? 1 : before == kLowest ? 0 : falling_exp(splat(before - top))[0];
    total = total * factor + sum(part);
    return factor;
  }
  // A query that a mask of bools lets see no key has the weights 0; of -inf in all scores comes NaN.
  float inverse(const Mask& mask) const { return mask.seen && total == 0 ? 1 : 1 / total; }
};

MGE_INLINE void multiply_row(float* x, float factor, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(x + i, load(x + i) * factor);
  if (i < n) store_n(x + i, load_n(x + i, n - i) * factor, n - i);
}

// y = a b for a tile of rows, or y += a b; b in blocks of 16 columns, each block after `b_block` floats.
template <Left left = Left::kRows>
void product(const float* a, ptrdiff_t a_step, int64_t rows, int64_t depth, const float* b, ptrdiff_t b_block,
             int64_t columns, RowsOf<float> y, bool add) {
  Tile tile = plain_tile();
  tile.a = a, tile.a_row = tile.a_step = a_step, tile.a_jump = kHalf * a_step;
  tile.b_block = b_block, tile.depth = depth, tile.y_row = y.step, tile.add = add;
  for (int64_t c = 0; c < columns; c += kColumns) {
    tile.b = b + c / kBlock * b_block + c % kBlock;
    tile.columns = std::min<int64_t>(kColumns, columns - c);
    tile.y = y.at + c;
    run_tile<left>(tile, rows);
  }
}

// Packs n rows as the right side of a product that sums over their elements, times a factor; or over the rows.
inline void pack_turned(RowsOf<const float> x, int64_t first, int64_t n, int64_t width, float factor, float* to) {
  const int64_t whole = n / kBlock * kBlock;
  pack_columns({x[first], 1, x.step}, 0, width, 0, whole, to);
  if (float* rest = to + whole * width; whole < n) {
    std::fill(rest, rest + kBlock * width, 0.0f);
    transpose_tile(x[first + whole], x.step, rest, kBlock, width, n - whole);
  }
  if (factor != 1) multiply_row(to, factor, round_up(n, kBlock) * width);
}
inline void pack(RowsOf<const float> x, int64_t first, int64_t n, int64_t width, float* to) {
  pack_columns({x[first], x.step, 1}, 0, n, 0, width, to);
}

// Applies a mask to the scores of query i with n keys from `key` on.
inline void apply(const Mask& mask, int64_t i, int64_t key, int64_t n, float* x) {
  const ptrdiff_t at = i * mask.row + key * mask.column;
  auto walk = [&](auto step) {
    if (mask.seen)
      for (int64_t j = 0; j < n; ++j) x[j] = mask.seen[at + j * step] ? x[j] : -kInfinity;
    else if (mask.added)
      for (int64_t j = 0; j < n; ++j) x[j] += mask.added[at + j * step];
  };
  if (mask.column)
    walk(std::integral_constant<int64_t, 1>());
  else
    walk(std::integral_constant<int64_t, 0>());
}

// Scores of a tile of queries with n keys from `key` on, which are packed and scaled; -inf where a key is not seen and
// in the rest of the last vector.
inline void score(const Head& h, int64_t first, int64_t rows, int64_t key, int64_t n, const float* packed,
                  RowsOf<float> y) {
  product(h.q[first], h.q.step, rows, h.width, packed, h.width * kBlock, n, y, false);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = h.causal ? std::clamp<int64_t>(first + r + 1 - key, 0, n) : n;
    apply(h.mask, first + r, key, seen, y[r]);
    std::fill(y[r] + seen, y[r] + round_up(n, kWidth), -kInfinity);
  }
}

inline int64_t even_part(int64_t n, int64_t most, int64_t unit) {  // of n in as few and as equal parts as can be
  int64_t parts = std::max<int64_t>(1, (n + most - 1) / most);
  return round_up((n + parts - 1) / parts, unit);
}

// Keys whose part of k and v, 256 KiB, stays in the level-2 cache.
inline int64_t keys_together(const Head& h) {
  return even_part(h.keys, std::clamp<int64_t>(65536 / std::max<int64_t>(1, h.width + h.depth), 64, 512), kBlock);
}

// A row of scores: aligned, and no power of two, so that rows use all sets of a cache.
inline ptrdiff_t score_row(int64_t keys) { return round_up(keys, kBlock) + kBlock; }

inline int64_t forward_floats(const Head& h, int64_t queries) {
  const int64_t keys = keys_together(h);
  return keys * (h.width + round_up(h.depth, kBlock)) + kRows * score_row(keys) + round_up(2 * queries, kBlock);
}

// Rows `begin` to `end` - 1 of y. `scratch`: forward_floats(h, end - begin), aligned to 64 bytes.
inline void forward(const Head& h, int64_t begin, int64_t end, RowsOf<float> y, float* scratch) {
  const int64_t block = keys_together(h), reach = h.reach(end, h.keys), queries = end - begin;
  float *keys = scratch, *values = keys + block * h.width, *line = values + block * round_up(h.depth, kBlock);
  const RowsOf<float> scores{line, score_row(block)};
  auto* running = reinterpret_cast<Running*>(scores[kRows]);
  std::fill(running, running + queries, Running());
  for (int64_t key = 0; key < reach; key += block) {
    const int64_t n = std::min(block, reach - key);
    pack_turned(h.k, key, n, h.width, h.scale, keys);
    pack(h.v, key, n, h.depth, values);
    for (int64_t i = 0; i < tile_count(queries); ++i) {
      const RowRange r = tile_rows(queries, i);
      const int64_t first = begin + r.begin, seen = h.reach(first + r.rows - key, n);
      if (seen <= 0) continue;
      score(h, first, r.rows, key, seen, keys, scores);
      for (int64_t j = 0; j < r.rows; ++j) {
        float factor = running[r.begin + j].take(scores[j], round_up(seen, kWidth));
        if (key && factor != 1) multiply_row(y[first + j], factor, h.depth);
      }
      product(scores.at, scores.step, r.rows, seen, values, n * kBlock, h.depth, {y[first], y.step}, key > 0);
    }
  }
  for (int64_t i = 0; i < queries; ++i) multiply_row(y[begin + i], running[i].inverse(h.mask), h.depth);
}

// Queries whose weights and gradients of scores, 512 KiB, are kept at once.
inline int64_t queries_together(const Head& h) {
  return even_part(h.queries, std::clamp<int64_t>(65536 / std::max<int64_t>(1, h.keys), 2 * kRows, 128), 1);
}

inline int64_t backward_floats(const Head& h) {
  const int64_t keys = round_up(h.keys, kBlock), queries = queries_together(h);
  const int64_t width = round_up(h.width, kBlock), depth = round_up(h.depth, kBlock);
  return keys * (2 * width + depth) + queries * (width + depth + 2 * score_row(h.keys));
}

// What queries `begin` to `end` - 1 give: their rows of dq, and all of dk and dv.
// `scratch`: backward_floats(h), aligned to 64 bytes.
inline void backward(const Head& h, RowsOf<const float> dy, int64_t begin, int64_t end, RowsOf<float> dq,
                     RowsOf<float> dk, RowsOf<float> dv, float* scratch) {
  const int64_t together = queries_together(h), all = h.reach(end, h.keys);
  const int64_t width = round_up(h.width, kBlock), depth = round_up(h.depth, kBlock);
  const int64_t key_floats = round_up(h.keys, kBlock);
  float *turned_keys = scratch, *turned_values = turned_keys + key_floats * width;
  float *keys = turned_values + key_floats * depth, *queries = keys + key_floats * width;
  float *outer = queries + together * width;  // dy
  const RowsOf<float> weights{outer + together * depth, score_row(h.keys)};
  const RowsOf<float> scores{weights[together], weights.step};
  pack_turned(h.k, 0, all, h.width, h.scale, turned_keys);
  pack_turned(h.v, 0, all, h.depth, 1, turned_values);
  pack(h.k, 0, all, h.width, keys);
  const bool zeroed = h.causal || begin == end;  // else the first block of queries reaches all keys
  for (int64_t j = 0; zeroed && j < h.keys; ++j) {
    std::fill(dk[j], dk[j] + h.width, 0.0f);
    std::fill(dv[j], dv[j] + h.depth, 0.0f);
  }
  for (int64_t from = begin; from < end; from += together) {
    const int64_t n = std::min(together, end - from), reach = h.reach(from + n, h.keys);
    pack(h.q, from, n, h.width, queries);
    pack(dy, from, n, h.depth, outer);
    for (int64_t i = 0; i < tile_count(n); ++i) {
      const RowRange r = tile_rows(n, i);
      const int64_t first = from + r.begin, seen = h.reach(first + r.rows, h.keys), whole = round_up(seen, kWidth);
      const RowsOf<float> p{weights[r.begin], weights.step}, ds{scores[r.begin], scores.step};
      score(h, first, r.rows, 0, seen, turned_keys, p);
      product(dy[first], dy.step, r.rows, h.depth, turned_values, h.depth * kBlock, seen, ds, false);
      for (int64_t j = 0; j < r.rows; ++j) {
        Running running;
        running.take(p[j], whole);
        std::fill(ds[j] + seen, ds[j] + whole, 0.0f);
        const float inverse = running.inverse(h.mask);
        vf part[4] = {};  // of sum(p * dp)
        vectors(whole, [&](int64_t k, int u) {
          vf weight = load(p[j] + k) * inverse;
          store(p[j] + k, weight);
          part[u] = fma(weight, load(ds[j] + k), part[u]);
        });
        const float mean = sum(part);
        vectors(whole, [&](int64_t k, int) {
          store(ds[j] + k, load(p[j] + k) * h.scale * (load(ds[j] + k) - mean));
        });
        if (whole < reach) {
          std::fill(p[j] + whole, p[j] + reach, 0.0f);
          std::fill(ds[j] + whole, ds[j] + reach, 0.0f);
        }
      }
      product(ds.at, ds.step, r.rows, seen, keys, all * kBlock, h.width, {dq[first], dq.step}, false);
    }
    const bool add = zeroed || from > begin;
    for (int64_t i = 0; i < tile_count(reach); ++i) {
      const RowRange r = tile_rows(reach, i);
      const int64_t skip = h.causal ? std::max<int64_t>(0, r.begin - from) : 0;  // queries that see none of these keys
      auto sum_queries = [&](const RowsOf<float>& x, const float* right, int64_t columns, const RowsOf<float>& y) {
        product<Left::kColumns>(x[skip] + r.begin, x.step, r.rows, n - skip, right + skip * kBlock, n * kBlock, columns,
                                {y[r.begin], y.step}, add);
      };
      sum_queries(weights, outer, h.depth, dv);
      sum_queries(scores, queries, h.width, dk);
    }
  }
}

}  // namespace mge::cpu::attention

#endif  // MGE_CPU_ATTENTION_HPP
