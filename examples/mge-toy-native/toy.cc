// A complete backend: elementwise arithmetic and matrix products on the host's processor.
// What it does not have, or refuses, runs on device `ref`.
#include <algorithm>
#include <cmath>
#include <functional>

#include "mge/kernel.hpp"

namespace {

constexpr int64_t GRAIN = 16384;  // elements a chunk: less is not worth a second thread

// Steps of an input of shape `from` in a walk over `to`, in elements: 0 on axes along which it repeats.
std::vector<int64_t> steps_of(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  std::vector<int64_t> steps(to.size(), 0);
  int64_t step = 1;
  for (size_t i = 1; i <= from.size(); ++i) {
    int64_t length = from[from.size() - i];
    steps[to.size() - i] = length == 1 ? 0 : step;
    step *= length;
  }
  return steps;
}

template <class T, class F>
mge::Function unary(const mge::Use& use, F f) {
  int64_t count = use.outputs[0].size();
  return [count, f](const mge::Run& run) {
    const T* x = run.in<T>(0);
    T* y = run.out<T>(0);
    mge::parallel_for(count, GRAIN, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = f(x[i]);
    });
  };
}

template <class T, class F>
mge::Function binary(const mge::Use& use, F f) {
  const auto &x_type = use.inputs[0], &y_type = use.inputs[1], &type = use.outputs[0];
  int64_t count = type.size();
  bool same = x_type.shape == type.shape && y_type.shape == type.shape;
  if (same || (type.shape == x_type.shape && y_type.size() == 1)) {
    int64_t y_step = same;
    return [count, f, y_step](const mge::Run& run) {
      const T *x = run.in<T>(0), *y = run.in<T>(1);
      T* z = run.out<T>(0);
      if (count <= GRAIN && y_step) {  // small: without the region
        for (int64_t i = 0; i < count; ++i) z[i] = f(x[i], y[i]);
        return;
      }
      mge::parallel_for(count, GRAIN, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) z[i] = f(x[i], y[i * y_step]);
      });
    };
  }
  auto shape = type.shape;
  auto x_steps = steps_of(x_type.shape, shape), y_steps = steps_of(y_type.shape, shape);
  return [=](const mge::Run& run) {
    const T *x = run.in<T>(0), *y = run.in<T>(1);
    T* z = run.out<T>(0);
    mge::parallel_for(count, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t rest = i, at_x = 0, at_y = 0;
        for (size_t axis = shape.size(); axis-- > 0; rest /= shape[axis]) {
          at_x += rest % shape[axis] * x_steps[axis];
          at_y += rest % shape[axis] * y_steps[axis];
        }
        z[i] = f(x[at_x], y[at_y]);
      }
    });
  };
}

// c[i, j] = sum_k a[i, k] * b[k, j], added in the order of k; either matrix may be given transposed.
template <class T>
mge::Function matmul(const mge::Use& use) {
  bool ta = use.flag("transpose_a"), tb = use.flag("transpose_b");
  const auto &a_shape = use.inputs[0].shape, &b_shape = use.inputs[1].shape;
  int64_t m = a_shape[ta], k = a_shape[!ta], n = b_shape[!tb];
  return [=](const mge::Run& run) {
    const T *a = run.in<T>(0), *b = run.in<T>(1);
    T* c = run.out<T>(0);
    mge::parallel_for(m, std::max<int64_t>(1, 4 * GRAIN / std::max<int64_t>(1, n * k)),
                      [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = c + i * n;
        std::fill(row, row + n, T(0));
        for (int64_t p = 0; p < k; ++p) {
          T x = ta ? a[p * m + i] : a[i * k + p];
          if (tb)
            for (int64_t j = 0; j < n; ++j) row[j] += x * b[j * k + p];
          else
            for (int64_t j = 0; j < n; ++j) row[j] += x * b[p * n + j];
        }
      }
    });
  };
}

std::string refuse_batches(const mge::Use& use) {
  bool two = use.inputs[0].shape.size() == 2 && use.inputs[1].shape.size() == 2;
  return two ? "" : "only products of two matrices";
}

template <class T>
T larger(T x, T y) {  // NaN wins, as in NumPy
  return x > y || x != x ? x : y;
}
template <class T>
T smaller(T x, T y) {
  return x < y || x != x ? x : y;
}

template <class T, class F>
void add_unary(mge::Kernels& kernels, const char* op, F f) {
  kernels.prepared<T>(op, [f](const mge::Use& use) { return unary<T>(use, f); }).inplace(0);
}

template <class T, class F>
void add_binary(mge::Kernels& kernels, const char* op, F f) {
  kernels.prepared<T>(op, [f](const mge::Use& use) { return binary<T>(use, f); })
      .inplace(0).inplace(1);
}

template <class T>
void add_all(mge::Kernels& kernels) {
  add_binary<T>(kernels, "add", std::plus<T>());
  add_binary<T>(kernels, "sub", std::minus<T>());
  add_binary<T>(kernels, "mul", std::multiplies<T>());
  add_binary<T>(kernels, "div", std::divides<T>());
  add_binary<T>(kernels, "maximum", larger<T>);
  add_binary<T>(kernels, "minimum", smaller<T>);
  add_unary<T>(kernels, "neg", std::negate<T>());
  add_unary<T>(kernels, "abs", [](T x) { return std::fabs(x); });
  add_unary<T>(kernels, "exp", [](T x) { return std::exp(x); });
  add_unary<T>(kernels, "log", [](T x) { return std::log(x); });
  add_unary<T>(kernels, "sqrt", [](T x) { return std::sqrt(x); });
  add_unary<T>(kernels, "tanh", [](T x) { return std::tanh(x); });
  kernels.prepared<T>("matmul", matmul<T>).unless(refuse_batches);
}

}  // namespace

MGE_BACKEND("toy_native", "the mge project", "0.1.0") {
  add_all<float>(kernels);
  add_all<double>(kernels);
}
