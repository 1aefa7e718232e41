// index, index_set, take_along, put_along: elements at positions that integer tensors hold.
#include <cstring>

#include "mge/cpu/halves.hpp"
#include "mge/cpu/positions.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

int64_t product(const std::vector<int64_t>& shape, size_t from, size_t to) {
  int64_t count = 1;
  for (size_t i = from; i < to; ++i) count *= shape[i];
  return count;
}

// Offsets of all elements of `sizes`, row-major, with the given strides.
std::vector<int64_t> offsets_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<int64_t> offsets = {0};
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<int64_t> longer;
    longer.reserve(offsets.size() * static_cast<size_t>(sizes[i]));
    for (int64_t offset : offsets)
      for (int64_t j = 0; j < sizes[i]; ++j) longer.push_back(offset + j * strides[i]);
    offsets.swap(longer);
  }
  return offsets;
}

// Where `index` and `index_set` find things. With x of shape (lead..., indexed and others mixed..., tail...) and b the
// positions: part[l, b, m, t] is x[lead l, at positions b, others m, tail t]; the tail lies in one piece.
struct Places {
  int64_t lead, lead_step, count, tail;
  std::vector<int64_t> others;  // offsets in x
  std::vector<int64_t> axes, sizes, steps;
  std::vector<std::vector<int64_t>> from;  // for each index: which of its elements each position takes

  Places(const Use& use, size_t first) : axes(use.integers("axes")) {
    const auto& shape = use.inputs[0].shape;
    const auto strides = strides_of(shape);
    std::vector<int64_t> other_sizes, other_strides, common;
    for (size_t i = static_cast<size_t>(axes[0]); i <= static_cast<size_t>(axes.back()); ++i)
      if (!std::count(axes.begin(), axes.end(), static_cast<int64_t>(i)))
        other_sizes.push_back(shape[i]), other_strides.push_back(strides[i]);
    others = offsets_of(other_sizes, other_strides);
    lead = product(shape, 0, static_cast<size_t>(axes[0]));
    lead_step = product(shape, static_cast<size_t>(axes[0]), shape.size());
    tail = product(shape, static_cast<size_t>(axes.back()) + 1, shape.size());
    for (int64_t axis : axes) sizes.push_back(shape[axis]), steps.push_back(strides[axis]);
    for (size_t i = first; i < use.inputs.size(); ++i) {
      const auto& other = use.inputs[i].shape;
      if (other.size() > common.size()) common.insert(common.begin(), other.size() - common.size(), 1);
      for (size_t a = 0; a < other.size(); ++a) {
        int64_t& n = common[common.size() - other.size() + a];
        if (n == 1) n = other[a];
      }
    }
    count = product(common, 0, common.size());
    for (size_t i = first; i < use.inputs.size(); ++i) {
      const auto& other = use.inputs[i].shape;
      std::vector<int64_t> own(common.size(), 0), dense = strides_of(other);
      for (size_t a = 0; a < other.size(); ++a)
        if (other[a] != 1) own[common.size() - other.size() + a] = dense[a];
      from.push_back(use.inputs[i].size() == count ? std::vector<int64_t>() : offsets_of(common, own));
    }
  }

  static uint64_t workspace_bytes(const Use& use, size_t first) {
    int64_t most = 0;
    for (size_t i = first; i < use.inputs.size(); ++i) most = std::max(most, use.inputs[i].size());
    return 8 * static_cast<uint64_t>(Places(use, first).count + most);
  }

  // The offset in x of each position, checked.
  const int64_t* read(const Run& run, size_t first) const {
    int64_t *offsets = static_cast<int64_t*>(run.workspace), *given = offsets + count;
    std::fill(offsets, offsets + count, 0);
    for (size_t i = 0; i < axes.size(); ++i) {
      const int64_t n = run.use.inputs[first + i].size();
      read_integers(*run.inputs[first + i], n, given);
      check_positions(given, n, sizes[i], axes[i]);
      for (int64_t b = 0; b < count; ++b) {
        const int64_t element = from[i].empty() ? b : from[i][static_cast<size_t>(b)];
        offsets[b] += given[element] * steps[i];
      }
    }
    return offsets;
  }

  int64_t each() const { return static_cast<int64_t>(others.size()) * tail; }  // elements a position
};

// The integer type that holds `bytes` bytes, for copies.
template <class F>
void with_width(int bits, F&& f) {
  if (bits == 8) f(uint8_t());
  if (bits == 16) f(uint16_t());
  if (bits == 32) f(uint32_t());
  if (bits == 64) f(uint64_t());
}

int64_t grain_of(int64_t each) { return std::max<int64_t>(1, kPiece / 2 / std::max<int64_t>(each, 1)); }

Function index_op(const Use& use) {
  const Places places(use, 1);
  return [=](const Run& run) {
    const int64_t* at = places.read(run, 1);
    if (!run.use.outputs[0].size()) return;
    with_width(run.use.inputs[0].dtype.bits, [&](auto kind) {
      using T = decltype(kind);
      const T* x = run.in<T>(0);
      T* y = run.out<T>(0);
      const int64_t each = places.each(), tail = places.tail;
      parallel_for(places.lead * places.count, grain_of(each), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* from = x + i / places.count * places.lead_step + at[i % places.count];
          T* to = y + i * each;
          if (each == 1)
            *to = *from;
          else
            for (int64_t other : places.others) {
              std::memcpy(to, from + other, sizeof(T) * static_cast<size_t>(tail));
              to += tail;
            }
        }
      });
    });
  };
}

// Copies the input to the output, unless they are one.
void copy_input(const Run& run) {
  const Type& type = run.use.inputs[0];
  if (run.inputs[0]->data != run.outputs[0]->data && type.size())
    std::memcpy(run.outputs[0]->data, run.inputs[0]->data, static_cast<size_t>(type.size()) * (type.dtype.bits / 8));
}

// Positions may repeat, so they are walked in order, and threads share the lead or the columns of the tail.
template <class T, bool add>
Function index_set(const Use& use) {
  const Places places(use, 2);
  return [=](const Run& run) {
    const int64_t* at = places.read(run, 2);
    copy_input(run);
    if (!run.use.inputs[1].size()) return;
    const T* value = run.in<T>(1);
    T* y = run.out<T>(0);
    const int64_t each = places.each(), tail = places.tail, width = std::min<int64_t>(tail, 256);
    const int64_t strips = (tail + width - 1) / width;
    const int64_t work = std::max<int64_t>(1, places.count * static_cast<int64_t>(places.others.size()) * width);
    parallel_for(places.lead * strips, std::max<int64_t>(1, kPiece / work), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t l = i / strips, start = i % strips * width, size = std::min(width, tail - start);
        for (int64_t b = 0; b < places.count; ++b)
          for (size_t m = 0; m < places.others.size(); ++m) {
            const T* from = value + (l * places.count + b) * each + static_cast<int64_t>(m) * tail + start;
            T* to = y + l * places.lead_step + at[b] + places.others[m] + start;
            for (int64_t j = 0; j < size; ++j) to[j] = add ? static_cast<T>(to[j] + from[j]) : from[j];
          }
      }
    });
  };
}

// x and index share all axes but one, along which they have sizes n and m; the others of index may be shorter.
struct Along {
  int64_t axis, n, m, step, inner;
  std::vector<int64_t> outer_offsets, inner_offsets;  // in x; the inner ones empty where they are 0, 1, 2, ...

  explicit Along(const Use& use) : axis(use.integer("axis", 0)) {
    const auto &x = use.inputs[0].shape, &i = use.inputs[1].shape;
    if (axis < 0) axis += static_cast<int64_t>(x.size());
    const auto strides = strides_of(x);
    n = x[axis], m = i[axis], step = strides[axis], inner = product(i, static_cast<size_t>(axis) + 1, i.size());
    outer_offsets = offsets_of({i.begin(), i.begin() + axis}, {strides.begin(), strides.begin() + axis});
    if (!std::equal(x.begin() + axis + 1, x.end(), i.begin() + axis + 1))
      inner_offsets = offsets_of({i.begin() + axis + 1, i.end()}, {strides.begin() + axis + 1, strides.end()});
  }
  int64_t in_inner(int64_t j) const { return inner_offsets.empty() ? j : inner_offsets[static_cast<size_t>(j)]; }

  static uint64_t workspace_bytes(const Use& use) { return 8 * static_cast<uint64_t>(use.inputs[1].size()); }

  const int64_t* read(const Run& run) const {
    int64_t* at = static_cast<int64_t*>(run.workspace);
    read_integers(*run.inputs[1], run.use.inputs[1].size(), at);
    check_positions(at, run.use.inputs[1].size(), n, axis);
    return at;
  }

  // Calls f(offset in x, number) for each element of index, in order within each outer one.
  template <class F>
  void each(const int64_t* at, F&& f) const {
    parallel_for(static_cast<int64_t>(outer_offsets.size()), grain_of(m * inner), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        for (int64_t i = 0, number = o * m * inner; i < m; ++i)
          for (int64_t j = 0; j < inner; ++j, ++number)
            f(outer_offsets[static_cast<size_t>(o)] + at[number] * step + in_inner(j), number);
    });
  }
};

Function take_along(const Use& use) {
  const Along along(use);
  return [=](const Run& run) {
    const int64_t* at = along.read(run);
    with_width(run.use.inputs[0].dtype.bits, [&](auto kind) {
      using T = decltype(kind);
      const T* x = run.in<T>(0);
      T* y = run.out<T>(0);
      along.each(at, [=](int64_t offset, int64_t number) { y[number] = x[offset]; });
    });
  };
}

template <class T, bool add>
Function put_along(const Use& use) {
  const Along along(use);
  return [=](const Run& run) {
    const int64_t* at = along.read(run);
    copy_input(run);
    const T* source = run.in<T>(2);
    T* y = run.out<T>(0);
    along.each(at, [=](int64_t offset, int64_t number) {
      y[offset] = add ? static_cast<T>(y[offset] + source[number]) : source[number];
    });
  };
}

bool adds(const Use& use) { return use.text("mode") == "add"; }

}  // namespace

void add_index(Kernels& kernels) {
  const auto positions = [](size_t first) {
    return [=](const Use& use) { return Places::workspace_bytes(use, first); };
  };
  // Copies need only the width of an element.
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float16, bfloat16, float,
            double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    using Bits = std::conditional_t<sizeof(T) == 1, uint8_t,
                                    std::conditional_t<sizeof(T) == 2, uint16_t,
                                                       std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    constexpr bool is_half = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;
    // Integers add as unsigned ones, which wrap.
    using Sum = std::conditional_t<std::is_floating_point_v<T>, T, Bits>;
    kernels.prepared<T>("index", index_op).workspace(positions(1));
    kernels.prepared<T>("take_along", take_along).workspace(Along::workspace_bytes);
    const Refusal not_halves = [](const Use& use) { return is_half && adds(use) ? "sums of 16-bit floats" : ""; };
    kernels
        .prepared<T>("index_set",
                     [](const Use& use) { return adds(use) ? index_set<Sum, true>(use) : index_set<Bits, false>(use); })
        .unless(not_halves)
        .workspace(positions(2))
        .inplace(0);
    kernels
        .prepared<T>("put_along",
                     [](const Use& use) { return adds(use) ? put_along<Sum, true>(use) : put_along<Bits, false>(use); })
        .unless(not_halves)
        .workspace(Along::workspace_bytes)
        .inplace(0);
  });
  also_halves(kernels, {"index_set", "put_along"});
}
