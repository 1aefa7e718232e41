// mge/cpu/gemm.hpp: matrix products of float32, with what is done before the store.
//
// In: a Product. Out: y = activation(a b + bias + residual). After tile.hpp; before the convolutions of size 1.
//
// A block of a and a panel of b (kColumns columns) of up to 1024 terms stay in the level-2 cache together; the panels
// pass by. Where several blocks read b, it is packed as a whole first, else each panel into scratch memory of the worker.
// Sums have one order for given shapes, whatever the threads.
#ifndef MGE_CPU_GEMM_HPP
#define MGE_CPU_GEMM_HPP

#include <algorithm>

#include "mge/cpu/activation.hpp"
#include "mge/cpu/strided.hpp"
#include "mge/cpu/tile.hpp"

namespace mge::cpu {

struct Matrix {
  const float* at;
  ptrdiff_t row, column;  // steps in floats; one of them is 1, or its axis has length 1
};

struct Product {
  int64_t m, n, k;
  Matrix a, b;
  const float* packed;  // (optional) b as [n / 16][k][16]
  float* y;
  ptrdiff_t y_row;
  const float* bias;      // (optional) [n]
  const float* residual;  // (optional) as y, may be y: each element is added before its place is written
  ptrdiff_t residual_row;
  Activation activation;
};

// Where a use adds a residual, its last input, the result may lie over that.
inline std::vector<MgeInplacePair> over_residual(const Use& use) {
  if (!use.flag("residual")) return {};
  return {{static_cast<uint32_t>(use.inputs.size()) - 1, 0}};
}

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The piece of a parallel_for that a worker most likely runs after piece i: worker 0 goes up, the others come down.
inline int64_t next_piece(int64_t i, int32_t worker) { return worker ? i - 1 : i + 1; }

constexpr int64_t kAhead = 8;  // rows: short runs of memory far apart, which the processor does not foresee

// Columns `begin` to `begin + columns` and `depth` rows of b from `first` on, as [columns / 16][depth][16].
inline void pack_columns(const Matrix& b, int64_t first, int64_t depth, int64_t begin, int64_t columns, float* to) {
  constexpr int64_t kTogether = 8;  // blocks: 512 bytes of each row at once
  for (int64_t c = 0; c < columns; c += kBlock, to += depth * kBlock) {
    const float* from = b.at + first * b.row + (begin + c) * b.column;
    if (int64_t some = std::min(kTogether, (columns - c) / kBlock); some && b.column == 1) {
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t i = 0; i < some; ++i) {
          __builtin_prefetch(from + (k + kAhead) * b.row + i * kBlock);
          std::memcpy(to + (i * depth + k) * kBlock, from + k * b.row + i * kBlock, 4 * kBlock);
        }
      c += (some - 1) * kBlock, to += (some - 1) * depth * kBlock;
      continue;
    }
    int64_t n = std::min<int64_t>(kBlock, columns - c);
    if (n == kBlock && b.row == 1) {
      transpose_tile(from, b.column, to, kBlock, depth, kBlock);
    } else {
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t i = 0; i < kBlock; ++i) to[k * kBlock + i] = i < n ? from[k * b.row + i * b.column] : 0;
    }
  }
}

constexpr int64_t kPanel = kColumns < kBlock ? kBlock : kColumns;  // whole tiles and whole blocks of packed columns

// How a product is cut, by its shape alone.
class Cut {
 public:
  static constexpr int64_t kDepth = 1024;       // terms a part
  static constexpr int64_t kLeft = 112 * 1024;  // floats of a block of a: with a panel of b, the level-2 cache
  static constexpr int64_t kRight = 2 << 20;    // floats of the columns of a block of b: the level-3 cache
  static constexpr int64_t kHeavyRight = 192 << 10;  // floats of b that a level-2 cache does not hold
  static constexpr int64_t kUnits = 16;         // pieces of work that a large product should have
  static constexpr int64_t kLeast = 2000000;    // multiplications that are worth a piece

  Cut(int64_t m, int64_t n, int64_t k, int64_t batch) : tiles_(m), panels_(count(n, kPanel)) {
    depth = k ? std::min(k, round_up(count(k, count(k, kDepth)), 4)) : 0;
    down_ = std::max<int64_t>(1, count(m, std::max<int64_t>(kRows, kLeft / std::max<int64_t>(1, depth))));
    across_ = std::max<int64_t>(1, count(n, std::max<int64_t>(kPanel, kRight / std::max<int64_t>(1, k))));
    const int64_t work = m * n * k;
    const int64_t units = std::clamp<int64_t>(work / kLeast * batch, work < kLeast / 2 ? 1 : 2, kUnits);
    const auto halve = [&](int64_t& parts, int64_t most, int64_t wanted) {  // so blocks are even in size and number
      while (blocks() * batch < wanted && 2 * parts <= most) parts *= 2;
    };
    // Rows where they suffice: a worker then finds in its caches what it made of them in the product before. But where
    // b comes from memory, each part of it should be read by one worker.
    const bool by_rows = n * k <= kHeavyRight && tiles_.count() * across_ * batch >= units / 2;
    if (by_rows) halve(down_, tiles_.count(), units);
    halve(across_, panels_, by_rows ? (units + 1) / 2 : units);
    halve(down_, tiles_.count(), (units + 1) / 2);
    rows = count(tiles_.count(), down_) * kRows, columns = count(panels_, across_) * kPanel;
  }

  int64_t rows, columns, depth;  // of a block, at most
  int64_t blocks() const { return down_ * across_; }
  // Where the rows of a block begin, or (with `next` = 1) those of the one below it; and the columns.
  int64_t row_of(int64_t block, int64_t next = 0) const {
    return tiles_[part(tiles_.count(), block % down_ + next, down_)].begin;
  }
  int64_t column_of(int64_t block, int64_t next = 0) const {
    return part(panels_, block / down_ + next, across_) * kPanel;
  }
  // Whether several blocks read each panel of b, so that it pays to pack all of b first.
  bool packs_first() const { return down_ > 1; }
  // Of each worker: a panel of b, then a block of a.
  int64_t scratch_floats() const { return b_floats() + std::max(rows * a_row(), rows / kRows * depth * kBlock); }
  int64_t b_floats() const { return packs_first() ? 0 : kPanel * depth; }
  int64_t a_row() const { return round_up(depth, 16) + 16; }  // in scratch memory

 private:
  static int64_t count(int64_t n, int64_t each) { return (n + each - 1) / each; }
  static int64_t part(int64_t n, int64_t i, int64_t parts) { return (2 * n * i + parts) / (2 * parts); }  // rounded
  RowTiles tiles_;
  int64_t panels_, down_, across_;
};

// One block of a product.
class Block {
 public:
  // `scratch`: Cut::scratch_floats(), aligned to 64 bytes. b is packed where the cut packs first.
  Block(const Product& p, const Cut& cut, int64_t block, float* scratch)
      : p_(p), row_(cut.row_of(block)), column_(cut.column_of(block)), rows_(cut.row_of(block, 1) - row_),
        columns_(std::min(cut.column_of(block, 1), p.n) - column_), next_column_(cut.column_of(block + 1)),
        tiles_(rows_), b_scratch_(scratch), a_scratch_(scratch + cut.b_floats()), a_scratch_row_(cut.a_row()) {
    by_columns_ = p.a.column != 1 && p.k > 1;
    // Rows a multiple of 4 KiB apart fall into few sets of a cache; terms that far apart, into many pages.
    copies_ = columns_ > 2 * kColumns && (by_columns_ || p.a.row % 1024 == 0);
    int64_t first = 0;
    do {
      multiply(first, std::min(cut.depth, p.k - first));
      first += cut.depth;
    } while (first < p.k);
  }

 private:
  void multiply(int64_t first, int64_t depth) {
    const bool last = first + depth >= p_.k;
    const float* a = p_.a.at + row_ * p_.a.row + first * p_.a.column;
    Tile tile = plain_tile();
    tile.depth = depth, tile.add = first > 0, tile.clip = last && p_.activation.clip;
    tile.low = p_.activation.low, tile.high = p_.activation.high;
    tile.a_row = copies_ && !by_columns_ ? a_scratch_row_ : p_.a.row;
    tile.a_step = p_.a.column;
    tile.a_jump = kHalf * tile.a_row;
    tile.y_row = p_.y_row, tile.residual_row = p_.residual_row;
    tile.b_block = (p_.packed ? p_.k : depth) * kBlock;
    if (copies_) copy_rows(a, depth);
    // Where b is small, and y and the residual are not: all columns of some rows, long runs of memory.
    const bool rows_first =
        p_.packed && p_.residual && !copies_ && columns_ * depth <= kFewRight && p_.m * p_.n >= kManyResults;
    const int64_t panels = (columns_ + kColumns - 1) / kColumns;
    for (int64_t outer = 0; outer < (rows_first ? tiles_.count() : panels); ++outer)
      for (int64_t inner = 0; inner < (rows_first ? panels : tiles_.count()); ++inner) {
        const int64_t c = (rows_first ? inner : outer) * kColumns, column = column_ + c;
        const int64_t i = rows_first ? outer : inner;
        tile.columns = std::min<int64_t>(kColumns, columns_ - c);
        tile.ahead_terms = 0;
        if (p_.packed) {
          tile.b = p_.packed + column / kBlock * tile.b_block + first * kBlock + column % kBlock;
          const float* next = rows_first ? nullptr : after(first, depth, c);
          if (next) tile.fetch(next, depth, i, tiles_.count());
        } else if (i == 0) {
          pack_columns(p_.b, first, depth, column, tile.columns, b_scratch_), tile.b = b_scratch_;
        }
        tile.bias = last && p_.bias ? p_.bias + column : nullptr;
        RowRange r = tiles_[i];
        tile.a = !copies_ ? a + r.begin * p_.a.row
                          : a_scratch_ + (by_columns_ ? i * depth * kBlock : r.begin * a_scratch_row_);
        tile.y = p_.y + (row_ + r.begin) * p_.y_row + column;
        if (first == 0 && p_.residual) tile.residual = p_.residual + (row_ + r.begin) * p_.residual_row + column;
        if (!by_columns_)
          run_tile(tile, r.rows);
        else if (copies_)
          run_tile<Left::kPacked>(tile, r.rows);
        else
          run_tile<Left::kColumns>(tile, r.rows);
        if (last && p_.activation.rows) p_.activation.rows(tile.y, p_.y_row, r.rows, tile.columns);
      }
  }

  static constexpr int64_t kFewRight = 64 << 10;    // floats of b that leave room in the level-2 cache
  static constexpr int64_t kManyResults = 1 << 20;  // floats of y that a level-2 cache does not hold

  // The block of a, as rows a_scratch_row_ apart; or a given by columns as tiles of `depth` columns kBlock apart.
  void copy_rows(const float* a, int64_t depth) {
    if (!by_columns_) {
      for (int64_t r = 0; r < rows_; ++r) std::memcpy(a_scratch_ + r * a_scratch_row_, a + r * p_.a.row, 4 * depth);
      return;
    }
    for (int64_t k = 0; k < depth; ++k) {
      const float* from = a + k * p_.a.column;
      for (int64_t i = 0; i < tiles_.count(); ++i) {
        RowRange r = tiles_[i];
        float* to = a_scratch_ + (i * depth + k) * kBlock;
        __builtin_prefetch(from + kAhead * p_.a.column + r.begin);
        if (row_ + r.begin + kBlock <= p_.m)  // what is read past the tile lies in the matrix
          std::memcpy(to, from + r.begin, 4 * kBlock);
        else
          for (int64_t j = 0; j < r.rows; ++j) to[j] = from[r.begin + j];
      }
    }
  }

  // The part of packed b that is read next, or nullptr.
  const float* after(int64_t first, int64_t depth, int64_t c) const {
    int64_t column = column_ + c + kColumns;
    if (c + kColumns >= columns_) {
      column = column_, first += depth;
      if (first >= p_.k) column = next_column_, first = 0;
    }
    return column < p_.n ? p_.packed + column / kBlock * p_.k * kBlock + first * kBlock : nullptr;
  }

  const Product p_;
  int64_t row_, column_, rows_, columns_;
  int64_t next_column_;  // of the block that this worker may take next
  RowTiles tiles_;
  float *b_scratch_, *a_scratch_;
  int64_t a_scratch_row_;
  bool by_columns_, copies_;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_GEMM_HPP
