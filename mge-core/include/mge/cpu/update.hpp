// mge/cpu/update.hpp: walks over many tensors at once, for optimizer updates and common norms.
//
// In: tensors of any float dtypes. Out: calls for blocks of them, in float32 or float64, on all threads.
// After lane.hpp. Blocks depend on the sizes of the tensors alone.
#ifndef MGE_CPU_UPDATE_HPP
#define MGE_CPU_UPDATE_HPP

#include "mge/cpu/halves.hpp"
#include "mge/cpu/lane.hpp"

namespace mge::cpu {

// ---- Scalars in tensors ----

inline double read_number(const MgeTensor& x) {
  double y = 0;
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float, double>(
      [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (x.dtype == dtype_of<T>()) y = static_cast<double>(*static_cast<const T*>(x.data));
      });
  for_types<float16, bfloat16>([&](auto tag) {
    using T = typename decltype(tag)::type;
    if (x.dtype == dtype_of<T>()) y = to_float(*static_cast<const T*>(x.data));
  });
  return y;
}

inline void write_number(const MgeTensor& x, double value) {
  for_types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    if (x.dtype == dtype_of<T>()) *static_cast<T*>(x.data) = static_cast<T>(value);
  });
  for_types<float16, bfloat16>([&](auto tag) {
    using T = typename decltype(tag)::type;
    if (x.dtype == dtype_of<T>()) *static_cast<T*>(x.data) = from_float<T>(static_cast<float>(value));
  });
}

// ---- Blocks ----

struct Block {
  int64_t tensor, begin, end;
};

// Tensors cut into blocks, and the blocks into groups that are worth a thread.
class Blocks {
 public:
  Blocks(const std::vector<Type>& types, int64_t count) {
    int64_t pending = 0;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t begin = 0, size = types[static_cast<size_t>(i)].size(); begin < size; begin += kBlockSize) {
        const int64_t end = std::min(size, begin + kBlockSize);
        if (pending == 0) groups_.push_back(all_.size());
        all_.push_back({i, begin, end});
        pending += end - begin;
        if (pending >= kPiece / 2) pending = 0;
      }
    groups_.push_back(all_.size());
  }
  size_t size() const { return all_.size(); }
  const Block& operator[](size_t i) const { return all_[i]; }

  // Calls f(block, its number) for each.
  template <class F>
  void each(F&& f) const {
    parallel_for(static_cast<int64_t>(groups_.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      for (size_t i = groups_[static_cast<size_t>(begin)]; i < groups_[static_cast<size_t>(end)]; ++i) f(all_[i], i);
    });
  }

 private:
  static constexpr int64_t kBlockSize = 8192;
  std::vector<Block> all_;
  std::vector<size_t> groups_;  // where each begins, and the end
};

constexpr int64_t kPart = 1024;  // elements that are converted at once

// Whether a tensor is stored as T.
template <class T>
bool is_of(const MgeTensor& x) {
  return x.dtype == dtype_of<T>();
}

// Elements of a tensor as T: where they lie, or converted into `space`.
template <class T>
const T* read_part(const MgeTensor& x, int64_t from, int64_t n, T* space) {
  if (is_of<T>(x)) return static_cast<const T*>(x.data) + from;
  const auto copy = [=](auto* p) {
    for (int64_t i = 0; i < n; ++i) space[i] = static_cast<T>(to_float(p[from + i]));
  };
  if (is_of<float>(x))
    copy(static_cast<const float*>(x.data));
  else if (is_of<float16>(x))
    copy(static_cast<const float16*>(x.data));
  else
    copy(static_cast<const bfloat16*>(x.data));
  return space;
}
template <class T>
void write_part(const MgeTensor& x, int64_t from, int64_t n, const T* space) {
  const auto copy = [=](auto* p) {
    for (int64_t i = 0; i < n; ++i) p[from + i] = from_float<std::decay_t<decltype(*p)>>(static_cast<float>(space[i]));
  };
  if (is_of<float>(x))
    copy(static_cast<float*>(x.data));
  else if (is_of<float16>(x))
    copy(static_cast<float16*>(x.data));
  else
    copy(static_cast<bfloat16*>(x.data));
}

// Runs rule(v) on vectors of the elements of `ins` (the first of them `count`), which overwrites the first `written`
// of v; these go to `outs`. Each output may lie over its input.
template <class T, int count, int written, class Rule>
void update_block(const MgeTensor* const (&ins)[count], const MgeTensor* const (&outs)[written], int64_t begin,
                  int64_t end, Rule&& rule) {
  using L = Lane<T>;
  bool plain = true;
  for (auto* x : ins) plain &= is_of<T>(*x);
  for (auto* x : outs) plain &= is_of<T>(*x);
  const int64_t step = plain ? end - begin : kPart;
  T space[count + written][kPart];
  for (int64_t from = begin; from < end; from += step) {
    const int64_t n = std::min(step, end - from);
    const T* in[count];
    T* out[written];
    for (int k = 0; k < count; ++k) in[k] = read_part<T>(*ins[k], from, n, space[k]);
    for (int k = 0; k < written; ++k)
      out[k] = is_of<T>(*outs[k]) ? static_cast<T*>(outs[k]->data) + from : space[count + k];
    walk<T>(n, [&](int64_t i, auto m) {
      typename L::V v[count];
      MGE_UNROLL
      for (int k = 0; k < count; ++k) prefetch(in[k] + i), v[k] = L::get(in[k] + i, m);
      rule(v, m);
      MGE_UNROLL
      for (int k = 0; k < written; ++k) L::put(out[k] + i, v[k], m);
    });
    for (int k = 0; k < written; ++k)
      if (!is_of<T>(*outs[k])) write_part(*outs[k], from, n, out[k]);
  }
}

}  // namespace mge::cpu

#endif  // MGE_CPU_UPDATE_HPP
