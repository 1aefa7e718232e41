// mge/cpu/strided.hpp: copies between two walks over memory: transposes, slices, repetitions, joins.
//
// In: sizes, and the steps of both sides on each axis. Out: an object that copies, on the host's threads.
//
// Axes that both sides walk in one go are merged. Then it is one of four cases by the innermost axis: rows of adjacent
// elements (memcpy), one element repeated, a transpose (in tiles, so that both sides use whole cache lines), or
// single elements.
#ifndef MGE_CPU_STRIDED_HPP
#define MGE_CPU_STRIDED_HPP

#include <algorithm>
#include <utility>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

// Steps of a dense, row-major tensor, in elements.
inline std::vector<int64_t> dense_steps(const std::vector<int64_t>& shape) {
  std::vector<int64_t> steps(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= shape[i]) steps[i] = step;
  return steps;
}

template <class T>
MGE_INLINE void transpose_scalar(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows,
                                 int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * to_step + j] = from[j * from_step + i];
}

// A square of 32-bit elements in registers: as many rows as a vector has lanes. Whole rows are read and written, so
// each cache line is touched once even where rows lie a power of two apart.
using Row = vu;

// Exchanges blocks of `distance` lanes between two rows that are `distance` apart.
template <int distance, int... lane>
MGE_INLINE void exchange(Row& a, Row& b, std::integer_sequence<int, lane...>) {
  Row low = __builtin_shufflevector(a, b, (lane & distance ? kWidth + lane - distance : lane)...);
  b = __builtin_shufflevector(a, b, (lane & distance ? kWidth + lane : lane + distance)...);
  a = low;
}
template <int distance>
MGE_INLINE void exchange_rows(Row* rows) {
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i)
    if (!(i & distance))
      exchange<distance>(rows[i], rows[i + distance], std::make_integer_sequence<int, kWidth>());
}
MGE_INLINE void transpose_square(const uint32_t* from, int64_t from_step, uint32_t* to, int64_t to_step) {
  Row rows[kWidth];
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i) rows[i] = load_as<Row>(from + i * from_step);
  if constexpr (kWidth > 8) exchange_rows<8>(rows);
  if constexpr (kWidth > 4) exchange_rows<4>(rows);
  exchange_rows<2>(rows);
  exchange_rows<1>(rows);
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i) std::memcpy(to + i * to_step, &rows[i], sizeof(Row));
}

// Three rows into groups of three, as the colours of an image: vector `part` of the kWidth groups.
template <int part, int... lane>
MGE_INLINE void join_three(Row a, Row b, Row c, uint32_t* to, std::integer_sequence<int, lane...>) {
  constexpr auto element = [](int i) { return part * kWidth + i; };  // its row is this modulo 3
  const Row two = __builtin_shufflevector(
      a, b, (element(lane) % 3 == 1 ? kWidth + element(lane) / 3 : element(lane) / 3)...);
  const Row all = __builtin_shufflevector(two, c, (element(lane) % 3 == 2 ? kWidth + element(lane) / 3 : lane)...);
  std::memcpy(to + part * kWidth, &all, sizeof(Row));
}
inline void transpose_three(const uint32_t* from, int64_t from_step, uint32_t* to, int64_t rows) {
  int64_t i = 0;
  for (; i + kWidth <= rows; i += kWidth) {
    const Row a = load_as<Row>(from + i), b = load_as<Row>(from + from_step + i);
    const Row c = load_as<Row>(from + 2 * from_step + i);
    constexpr auto lanes = std::make_integer_sequence<int, kWidth>();
    join_three<0>(a, b, c, to + 3 * i, lanes);
    join_three<1>(a, b, c, to + 3 * i, lanes);
    join_three<2>(a, b, c, to + 3 * i, lanes);
  }
  transpose_scalar(from + i, from_step, to + 3 * i, 3, rows - i, 3);
}

// to[i][j] = from[j][i] for i < rows, j < columns; both steps are those between rows.
template <class T>
inline void transpose_tile(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows, int64_t columns) {
  if constexpr (sizeof(T) != 4) {
    transpose_scalar(from, from_step, to, to_step, rows, columns);
  } else if (columns == 3 && to_step == 3) {
    transpose_three(reinterpret_cast<const uint32_t*>(from), from_step, reinterpret_cast<uint32_t*>(to), rows);
  } else {
    const int64_t whole_rows = rows - rows % kWidth, whole_columns = columns - columns % kWidth;
    for (int64_t i = 0; i < whole_rows; i += kWidth)
      for (int64_t j = 0; j < whole_columns; j += kWidth)
        transpose_square(reinterpret_cast<const uint32_t*>(from + j * from_step + i), from_step,
                         reinterpret_cast<uint32_t*>(to + i * to_step + j), to_step);
    transpose_scalar(from + whole_columns * from_step, from_step, to + whole_columns, to_step, whole_rows,
                     columns - whole_columns);
    transpose_scalar(from + whole_rows, from_step, to + whole_rows * to_step, to_step, rows - whole_rows, columns);
  }
}

class StridedCopy {
 public:
  // `from` and `to` are steps in elements of `itemsize` bytes: 1, 2, 4 or 8.
  StridedCopy(const std::vector<int64_t>& sizes, const std::vector<int64_t>& from, const std::vector<int64_t>& to,
              int64_t itemsize)
      : itemsize_(itemsize), size_(1) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      size_ *= sizes[i];
      add_axis({sizes[i], from[i], to[i]});
    }
    if (axes_.empty()) axes_.push_back({1, 1, 1});
    if (size_ > 0) choose();
  }

  void operator()(const void* from, void* to) const {
    switch (itemsize_) {
      case 1: return copy(static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
      case 2: return copy(static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to));
      case 4: return copy(static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to));
      default: return copy(static_cast<const uint64_t*>(from), static_cast<uint64_t*>(to));
    }
  }

 private:
  struct Axis {
    int64_t size, from, to;
  };
  static constexpr int64_t kTile = 64;           // rows and columns of a transpose at once: whole cache lines
  static constexpr int64_t kChunkBytes = 131072;

  void add_axis(Axis axis) {
    if (axis.size == 1) return;
    if (!axes_.empty() && axes_.back().from == axis.from * axis.size && axes_.back().to == axis.to * axis.size) {
      axis.size *= axes_.back().size;
      axes_.pop_back();
    }
    axes_.push_back(axis);
  }

  // Takes the innermost axis out of the outer ones, cut into pieces; for a transpose also the axis along which the
  // source is dense, cut into tiles.
  void choose() {
    inner_ = axes_.back();
    axes_.pop_back();
    if (inner_.to == 1 && inner_.from != 1 && inner_.from != 0)
      for (size_t i = axes_.size(); i-- > 0;)
        if (axes_[i].from == 1 && axes_[i].size > 1) {
          across_ = axes_[i];
          axes_.erase(axes_.begin() + static_cast<std::ptrdiff_t>(i));
          axes_.push_back({(across_.size + kTile - 1) / kTile, kTile * across_.from, kTile * across_.to});
          transposes_ = true;
          break;
        }
    const int64_t rows = transposes_ ? kTile : 1;
    piece_ = std::min(inner_.size, (kChunkBytes / itemsize_ / rows + kTile - 1) / kTile * kTile);
    axes_.push_back({(inner_.size + piece_ - 1) / piece_, piece_ * inner_.from, piece_ * inner_.to});
    units_ = 1;
    for (const Axis& axis : axes_) units_ *= axis.size;
    grain_ = std::max<int64_t>(1, kChunkBytes / (piece_ * itemsize_ * rows));
  }

  template <class T>
  void copy(const T* from, T* to) const {
    parallel_for(units_, grain_, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> at(axes_.size());
      int64_t rest = begin, source = 0, target = 0;
      for (size_t i = axes_.size(); i-- > 0; rest /= axes_[i].size) {
        at[i] = rest % axes_[i].size;
        source += at[i] * axes_[i].from, target += at[i] * axes_[i].to;
      }
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t n = std::min(piece_, inner_.size - at.back() * piece_);
        if (transposes_)
          tiles(from + source, to + target, std::min(kTile, across_.size - at[axes_.size() - 2] * kTile), n);
        else
          row(from + source, to + target, n);
        for (size_t i = axes_.size(); i-- > 0;) {
          source += axes_[i].from, target += axes_[i].to;
          if (++at[i] < axes_[i].size) break;
          source -= at[i] * axes_[i].from, target -= at[i] * axes_[i].to;
          at[i] = 0;
        }
      }
    });
  }

  template <class T>
  void row(const T* from, T* to, int64_t n) const {
    const int64_t from_step = inner_.from, to_step = inner_.to;
    if (from_step == 1 && to_step == 1)
      std::memcpy(to, from, n * sizeof(T));
    else if (from_step == 0 && to_step == 1)
      std::fill(to, to + n, *from);
    else
      for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
  }

  template <class T>
  void tiles(const T* from, T* to, int64_t rows, int64_t n) const {
    for (int64_t j = 0; j < n; j += kTile)
      transpose_tile(from + j * inner_.from, inner_.from, to + j, across_.to, rows, std::min(kTile, n - j));
  }

  int64_t itemsize_, size_;
  std::vector<Axis> axes_;  // outer ones, merged; the last counts pieces, for a transpose the one before counts tiles
  Axis inner_{}, across_{};
  bool transposes_ = false;
  int64_t piece_ = 1, units_ = 0, grain_ = 1;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_STRIDED_HPP
