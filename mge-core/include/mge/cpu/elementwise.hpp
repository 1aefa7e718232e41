// mge/cpu/elementwise.hpp: ops that work element by element, with NumPy's broadcasting.
//
// In: a function on vectors of float32 or on scalars. Out: kernels for the registry, on the host's threads.
//
// A `Block` computes a run of contiguous elements; all else is shared. Operands that repeat are laid out in a small
// buffer first, which stays in the first cache; most often once a chunk. float16 and bfloat16 are converted to float32
// in such buffers, so that no op is compiled for them.
#ifndef MGE_CPU_ELEMENTWISE_HPP
#define MGE_CPU_ELEMENTWISE_HPP

#include <algorithm>
#include <array>
#include <memory>

#include "mge/cpu/scalar.hpp"
#include "mge/cpu/vec.hpp"

namespace mge::cpu {

using Block = std::function<void(const void* const* in, void* out, int64_t n)>;
using Shape = std::vector<int64_t>;

constexpr int kOperands = 3;          // inputs of an elementwise op, at most
constexpr int64_t kBuffer = 1024;     // elements of a buffer
constexpr int64_t kCheap = 32768;     // elements a chunk where they cost about a nanosecond's quarter each,
constexpr int64_t kCostly = 8192;     // and where they cost more

// ---- Loops over contiguous elements. Output and input may be the same memory. ----

#if defined(__clang__)
#define MGE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MGE_INDEPENDENT _Pragma("GCC ivdep")
#endif

// y[i] = f(x[i]...), by vectors.
template <class F, class... In>
MGE_INLINE void map_vectors(int64_t n, float* y, F f, const In*... x) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, f(load(x + i)...));
  if (i < n) store_n(y + i, f(load_n(x + i, n - i)...), n - i);
}

// The same by scalars; the compiler makes vectors of it where it can.
template <class Out, class F, class... In>
MGE_INLINE void map_scalars(int64_t n, Out* y, F f, const In*... x) {
  MGE_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<Out>(f(x[i]...));
}

// A block of an op with one or two inputs of type T: by vectors where both sides are float32.
template <class T, class Out = T, class F>
Block unary_block(F f) {
  return [f](const void* const* in, void* out, int64_t n) {
    auto* x = static_cast<const T*>(in[0]);
    if constexpr (std::is_same_v<T, float> && std::is_same_v<Out, float>)
      map_vectors(n, static_cast<float*>(out), f, x);
    else
      map_scalars(n, static_cast<Out*>(out), f, x);
  };
}
template <class T, class Out = T, class F>
Block binary_block(F f) {
  return [f](const void* const* in, void* out, int64_t n) {
    auto *x = static_cast<const T*>(in[0]), *y = static_cast<const T*>(in[1]);
    if constexpr (std::is_same_v<T, float> && std::is_same_v<Out, float>)
      map_vectors(n, static_cast<float*>(out), f, x, y);
    else
      map_scalars(n, static_cast<Out*>(out), f, x, y);
  };
}

template <class Half>
void widen(const Half* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, load(x + i));
  if (i < n) store_n(y + i, load_n(x + i, n - i), n - i);
}
template <class Half>
void narrow(const float* x, Half* y, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, load(x + i));
  if (i < n) store_n(y + i, load_n(x + i, n - i), n - i);
}

// The block for inputs of a 16-bit float dtype, from one for float32; `out_too`: the output is one of that dtype.
template <class Half>
Block widened(Block block, int operands, bool out_too) {
  return [=](const void* const* in, void* out, int64_t n) {
    float inputs[kOperands][kBuffer], output[kBuffer];
    const void* wide[kOperands] = {inputs[0], inputs[1], inputs[2]};
    for (int64_t at = 0; at < n; at += kBuffer) {
      int64_t part = std::min(kBuffer, n - at);
      for (int k = 0; k < operands; ++k) widen(static_cast<const Half*>(in[k]) + at, inputs[k], part);
      if (out_too) {
        block(wide, output, part);
        narrow(output, static_cast<Half*>(out) + at, part);
      } else {
        block(wide, static_cast<bool*>(out) + at, part);
      }
    }
  };
}

// ---- Broadcasting ----

// How a block is called for all elements of an output: which axes one call covers, and what lies where.
class Broadcast {
 public:
  struct Operand {
    Shape shape;
    int64_t itemsize;
  };

  Broadcast(const Shape& shape, int64_t out_itemsize, std::vector<Operand> operands, Block block, int64_t grain)
      : operands_(std::move(operands)), block_(std::move(block)), out_itemsize_(out_itemsize), grain_(grain) {
    std::vector<Shape> steps;
    for (const Operand& operand : operands_) steps.push_back(steps_of(operand.shape, shape));
    for (size_t i = 0; i < shape.size(); ++i) add_axis(shape[i], steps, i);
    size_ = 1;
    for (const Axis& axis : axes_) size_ *= axis.size;
    if (axes_.empty()) axes_.push_back({1, {1, 1, 1}});
    if (size_ > 0) choose_block();
  }

  void operator()(const void* const* inputs, void* out) const {
    if (size_ == 0) return;
    parallel_for(blocks_, std::max<int64_t>(1, grain_ / (rows_ * inner_)),
                 [&](int64_t begin, int64_t end) { chunk(inputs, static_cast<char*>(out), begin, end); });
  }

 private:
  struct Axis {
    int64_t size;
    std::array<int64_t, kOperands> step;  // in elements, of each operand; 0 where it repeats
  };

  static Shape steps_of(const Shape& from, const Shape& to) {
    Shape steps(to.size(), 0);
    int64_t step = 1;
    for (size_t i = 1; i <= from.size(); ++i) {
      int64_t length = from[from.size() - i];
      steps[to.size() - i] = length == 1 ? 0 : step;
      step *= length;
    }
    return steps;
  }

  // Appends an axis, or merges it with the one before where all operands walk both in one go.
  void add_axis(int64_t size, const std::vector<Shape>& steps, size_t i) {
    if (size == 1) return;
    Axis axis{size, {}};
    bool merges = !axes_.empty();
    for (size_t k = 0; k < steps.size(); ++k) {
      axis.step[k] = steps[k][i];
      if (merges) merges = axes_.back().step[k] == axis.step[k] * size;
    }
    if (merges) {
      axis.size *= axes_.back().size;
      axes_.pop_back();
    }
    axes_.push_back(axis);
  }

  // A block covers all axes after `split_`, and `rows_` of the split axis: as many elements as a buffer holds. Where no
  // operand needs a buffer, it covers a grain.
  void choose_block() {
    split_ = axes_.size() - 1;
    inner_ = 1;
    while (split_ > 0 && inner_ * axes_[split_].size <= kBuffer / 2) inner_ *= axes_[split_--].size;
    int64_t most = kBuffer;
    if (inner_ == 1) {
      const auto& step = axes_.back().step;
      if (std::all_of(step.begin(), step.begin() + operands_.size(), [](int64_t s) { return s == 1; }))
        most = grain_;
    }
    const int64_t length = axes_[split_].size;
    rows_ = std::min(most / inner_, length);
    pieces_ = (length + rows_ - 1) / rows_;
    rows_ = (length + pieces_ - 1) / pieces_;  // of even size
    blocks_ = pieces_;
    for (size_t i = 0; i < split_; ++i) blocks_ *= axes_[i].size;
    for (size_t k = 0; k < operands_.size(); ++k) {
      int64_t dense = 1;
      direct_[k] = true;
      for (size_t i = axes_.size(); i-- > split_; dense *= axes_[i].size)
        if (axes_[i].step[k] != dense && !(i == split_ && rows_ == 1)) direct_[k] = false;
    }
  }

  void chunk(const void* const* inputs, char* out, int64_t begin, int64_t end) const {
    alignas(64) char buffers[kOperands][kBuffer * 8];
    int64_t filled[kOperands] = {-1, -1, -1}, filled_rows[kOperands] = {};  // what a buffer holds: from where, rows
    for (int64_t b = begin; b < end; ++b) {
      int64_t piece = b % pieces_, rest = b / pieces_;
      int64_t rows = std::min(rows_, axes_[split_].size - piece * rows_);
      int64_t at[kOperands];
      for (size_t k = 0; k < operands_.size(); ++k) at[k] = piece * rows_ * axes_[split_].step[k];
      int64_t place = rest * axes_[split_].size + piece * rows_;
      for (size_t i = split_; i-- > 0; rest /= axes_[i].size)
        for (size_t k = 0; k < operands_.size(); ++k) at[k] += rest % axes_[i].size * axes_[i].step[k];
      const void* in[kOperands];
      for (size_t k = 0; k < operands_.size(); ++k) {
        const int64_t itemsize = operands_[k].itemsize;
        in[k] = static_cast<const char*>(inputs[k]) + at[k] * itemsize;
        if (direct_[k]) continue;
        if (filled[k] != at[k] || filled_rows[k] < rows) {
          gather(static_cast<const char*>(in[k]), buffers[k], split_, rows, k, itemsize);
          filled[k] = at[k], filled_rows[k] = rows;
        }
        in[k] = buffers[k];
      }
      block_(in, out + place * inner_ * out_itemsize_, rows * inner_);
    }
  }

  // Lays out the elements of an operand along the axes from `axis` on; returns where they end.
  char* gather(const char* from, char* to, size_t axis, int64_t size, size_t k, int64_t itemsize) const {
    const int64_t step = axes_[axis].step[k] * itemsize;
    const bool last = axis + 1 == axes_.size();
    if (last && step) return static_cast<char*>(std::memcpy(to, from, size * itemsize)) + size * itemsize;
    if (step) {
      for (int64_t i = 0; i < size; ++i) to = gather(from + i * step, to, axis + 1, axes_[axis + 1].size, k, itemsize);
      return to;
    }
    int64_t first = itemsize;  // then repeated, by doubling
    if (last)
      std::memcpy(to, from, itemsize);
    else
      first = gather(from, to, axis + 1, axes_[axis + 1].size, k, itemsize) - to;
    const int64_t total = first * size;
    for (int64_t have = first; have < total; have *= 2) std::memcpy(to + have, to, std::min(have, total - have));
    return to + total;
  }

  std::vector<Operand> operands_;
  Block block_;
  int64_t out_itemsize_, grain_, size_;
  std::vector<Axis> axes_;  // merged, outer to inner
  size_t split_;
  int64_t inner_, rows_, pieces_, blocks_;
  std::array<bool, kOperands> direct_;
};

inline int64_t itemsize(MgeDataType dtype) { return dtype.bits / 8; }

// A run of `block` over all elements; input k may be given another shape than it has.
inline Function broadcast(const Use& use, Block block, int64_t grain, std::vector<Shape> shapes = {}) {
  std::vector<Broadcast::Operand> operands;
  for (size_t k = 0; k < use.inputs.size(); ++k)
    operands.push_back({k < shapes.size() ? shapes[k] : use.inputs[k].shape, itemsize(use.inputs[k].dtype)});
  const Type& out = use.outputs[0];
  auto plan = std::make_shared<Broadcast>(out.shape, itemsize(out.dtype), std::move(operands), std::move(block), grain);
  return [plan](const Run& run) {
    const void* inputs[kOperands];
    for (size_t k = 0; k < run.use.inputs.size(); ++k) inputs[k] = run.inputs[k]->data;
    (*plan)(inputs, run.outputs[0]->data);
  };
}

// ---- Registration ----

using BlockMaker = std::function<Block(const Use&)>;

// An op whose inputs all are of one dtype, and with `in_place` its output, too, which then may lie over them.
inline void add_blocks(Kernels& kernels, const std::string& op, MgeDataType dtype, int inputs, bool in_place,
                       BlockMaker make, int64_t grain = kCheap) {
  Kernel& kernel = kernels.prepared(op, dtype, [=](const Use& use) { return broadcast(use, make(use), grain); });
  for (int k = 0; in_place && k < inputs; ++k) kernel.inplace(static_cast<uint32_t>(k));
}
inline void add_block(Kernels& kernels, const std::string& op, MgeDataType dtype, int inputs, bool in_place,
                      Block block, int64_t grain = kCheap) {
  add_blocks(kernels, op, dtype, inputs, in_place, [=](const Use&) { return block; }, grain);
}

// An op on float32, float64, float16 and bfloat16, from its blocks for the first two.
inline void add_float_block(Kernels& kernels, const std::string& op, int inputs, Block narrow, Block wide,
                            int64_t grain) {
  add_block(kernels, op, dtype_of<float>(), inputs, true, narrow, grain);
  add_block(kernels, op, dtype_of<double>(), inputs, true, wide, grain);
  add_block(kernels, op, dtype_of<float16>(), inputs, true, widened<float16>(narrow, inputs, true), grain);
  add_block(kernels, op, dtype_of<bfloat16>(), inputs, true, widened<bfloat16>(narrow, inputs, true), grain);
}
// `f` takes vectors of float32, and doubles.
template <class F>
void add_unary(Kernels& kernels, const std::string& op, F f, int64_t grain = kCheap) {
  add_float_block(kernels, op, 1, unary_block<float>(f), unary_block<double>(f), grain);
}
template <class F>
void add_binary(Kernels& kernels, const std::string& op, F f, int64_t grain = kCheap) {
  add_float_block(kernels, op, 2, binary_block<float>(f), binary_block<double>(f), grain);
}
// The same for an op with one input and with attributes: `make(use)` gives the function.
template <class Make>
void add_unary_with(Kernels& kernels, const std::string& op, Make make, int64_t grain = kCheap) {
  BlockMaker narrow = [make](const Use& use) { return unary_block<float>(make(use)); };
  add_blocks(kernels, op, dtype_of<float>(), 1, true, narrow, grain);
  add_blocks(kernels, op, dtype_of<double>(), 1, true,
             [make](const Use& use) { return unary_block<double>(make(use)); }, grain);
  for_types<float16, bfloat16>([&](auto tag) {
    using Half = typename decltype(tag)::type;
    add_blocks(kernels, op, dtype_of<Half>(), 1, true,
               [narrow](const Use& use) { return widened<Half>(narrow(use), 1, true); }, grain);
  });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_ELEMENTWISE_HPP
