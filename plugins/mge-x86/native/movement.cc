// Ops that move elements and compute nothing: transposes, slices, joins, repetitions, copies; and `iota`.
#include <memory>
#include <numeric>

#include "mge/cpu/elementwise.hpp"
#include "mge/cpu/strided.hpp"

using namespace mge;
using namespace mge::cpu;

namespace {

// A kernel that copies input 0 to the output; the source begins at `offset`, in elements.
Function copy_of(const Shape& sizes, const Shape& from, const Shape& to, int64_t size, int64_t offset = 0) {
  auto copy = std::make_shared<StridedCopy>(sizes, from, to, size);
  return [copy, bytes = offset * size](const Run& run) {
    const char* from = static_cast<const char*>(run.inputs[0]->data);
    if (from != run.outputs[0]->data) (*copy)(from + bytes, run.outputs[0]->data);
  };
}

Function plain_copy(const Use& use) {
  return copy_of({use.outputs[0].size()}, {1}, {1}, itemsize(use.outputs[0].dtype));
}

Function transpose(const Use& use) {
  const Shape &shape = use.inputs[0].shape, &sizes = use.outputs[0].shape, steps = dense_steps(shape);
  const int64_t ndim = static_cast<int64_t>(shape.size());
  Shape pattern = use.integers("pattern"), from;
  if (!use.has("pattern"))  // reversed
    for (int64_t axis = ndim; axis-- > 0;) pattern.push_back(axis);
  for (int64_t axis : pattern) from.push_back(steps[axis < 0 ? axis + ndim : axis]);
  return copy_of(sizes, from, dense_steps(sizes), itemsize(use.outputs[0].dtype));
}

Function broadcast_to(const Use& use) {
  const Shape &shape = use.inputs[0].shape, &sizes = use.outputs[0].shape, steps = dense_steps(shape);
  Shape from(sizes.size(), 0);
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) from[sizes.size() - shape.size() + i] = steps[i];
  return copy_of(sizes, from, dense_steps(sizes), itemsize(use.outputs[0].dtype));
}

// The walk over the part of a tensor that `starts` and `steps` cut out.
struct Cut {
  Shape steps;
  int64_t offset = 0;
};
Cut cut_of(const Use& use, const Shape& shape) {
  Cut cut;
  Shape dense = dense_steps(shape), starts = use.integers("starts"), steps = use.integers("steps");
  for (size_t i = 0; i < shape.size(); ++i) {
    cut.steps.push_back(dense[i] * steps[i]);
    cut.offset += dense[i] * starts[i];
  }
  return cut;
}

Function slice(const Use& use) {
  const Shape& sizes = use.outputs[0].shape;
  Cut cut = cut_of(use, use.inputs[0].shape);
  return copy_of(sizes, cut.steps, dense_steps(sizes), itemsize(use.outputs[0].dtype), cut.offset);
}

Function slice_set(const Use& use) {
  const Shape& sizes = use.inputs[1].shape;
  const int64_t size = itemsize(use.outputs[0].dtype);
  Cut cut = cut_of(use, use.inputs[0].shape);
  auto part = std::make_shared<StridedCopy>(sizes, dense_steps(sizes), cut.steps, size);
  return [whole = plain_copy(use), part, bytes = cut.offset * size](const Run& run) {
    whole(run);
    (*part)(run.inputs[1]->data, static_cast<char*>(run.outputs[0]->data) + bytes);
  };
}

Function concat(const Use& use) {
  const Type& out = use.outputs[0];
  int64_t axis = use.integer("axis", 0), size = itemsize(out.dtype), place = 0;
  if (axis < 0) axis += static_cast<int64_t>(out.shape.size());
  const Shape steps = dense_steps(out.shape);
  struct Part {
    StridedCopy copy;
    int64_t bytes;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  for (const Type& input : use.inputs) {
    parts->push_back({StridedCopy(input.shape, dense_steps(input.shape), steps, size), place * steps[axis] * size});
    place += input.shape[axis];
  }
  return [parts](const Run& run) {
    for (size_t i = 0; i < parts->size(); ++i)
      (*parts)[i].copy(run.inputs[i]->data, static_cast<char*>(run.outputs[0]->data) + (*parts)[i].bytes);
  };
}

// out[..., i, ...] = i along an axis.
template <class T>
Function iota(const Use& use) {
  const Shape& shape = use.outputs[0].shape;
  const size_t axis = static_cast<size_t>(use.integer("axis", 0));
  const int64_t length = shape[axis], inner = dense_steps(shape)[axis];
  const int64_t rows = length * inner, outer = rows > 0 ? use.outputs[0].size() / rows : 0;
  return [=](const Run& run) {
    T* y = run.out<T>(0);
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < length; ++i, y += inner)
        if constexpr (std::is_arithmetic_v<T>)
          std::fill(y, y + inner, static_cast<T>(i));
        else
          std::fill(y, y + inner, from_float<T>(static_cast<float>(i)));
  };
}

}  // namespace

void add_movement(Kernels& kernels) {
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float16, bfloat16, float,
            double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels.prepared<T>("transpose", transpose);
    kernels.prepared<T>("broadcast_to", broadcast_to);
    kernels.prepared<T>("slice", slice);
    kernels.prepared<T>("slice_set", slice_set).inplace(0);
    kernels.prepared<T>("concat", concat);
    kernels.prepared<T>("copy", plain_copy).inplace(0);
    kernels.prepared<T>("detach", plain_copy).inplace(0);
    for (const char* op : {"reshape", "expand_dims", "squeeze", "flatten"}) kernels.prepared<T>(op, plain_copy);
    kernels.prepared<T>("iota", iota<T>);
  });
}
