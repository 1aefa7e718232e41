// Matrix products: matmul, linear, x86::pack_matrix, x86::linear.
#define MGE_TILES  // the microkernel is compiled here, for the convolutions and attention too
#include "mge/cpu/gemm.hpp"

#include "mge/cpu/gemm_portable.hpp"
#include "mge/cpu/gemv.hpp"
#include "mge/cpu/halves.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

int64_t product_of(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  return size;
}

// matmul as products of matrices (m, k) and (k, n).
struct Products {
  int64_t m, n, k, count;
  ptrdiff_t a_row, a_step, b_row, b_step;  // steps between rows, and between columns
  std::vector<int64_t> batch, a_batch, b_batch;  // lengths of the batch axes; steps of the inputs along them

  explicit Products(const Use& use) {
    std::vector<int64_t> a = use.inputs[0].shape, b = use.inputs[1].shape, y = use.outputs[0].shape;
    const bool turned_a = a.size() > 1 && use.flag("transpose_a"), turned_b = b.size() > 1 && use.flag("transpose_b");
    if (a.size() > 1) y.pop_back();
    if (b.size() > 1) y.pop_back();
    if (a.size() == 1) a.insert(a.begin(), 1);
    if (b.size() == 1) b.push_back(1);
    const int64_t rows = a[a.size() - 2], columns = b.back();
    m = turned_a ? a.back() : rows, k = turned_a ? rows : a.back(), n = turned_b ? b[b.size() - 2] : columns;
    a_row = turned_a ? 1 : k, a_step = turned_a ? m : 1, b_row = turned_b ? 1 : n, b_step = turned_b ? k : 1;
    if (m == 1) a_row = k, a_step = 1;  // a vector lies the same either way
    if (n == 1) b_row = 1, b_step = k;
    batch = y, count = product_of(y);
    a_batch = steps(a, m * k), b_batch = steps(b, k * n);
    if (b.size() == 2 && (a_step == 1 || k == 1)) m *= count, count = 1, batch.clear();  // one large product
  }

  ptrdiff_t offset(const std::vector<int64_t>& steps_of_input, int64_t i) const {
    ptrdiff_t at = 0;
    for (size_t axis = batch.size(); axis-- > 0; i /= batch[axis]) at += i % batch[axis] * steps_of_input[axis];
    return at;
  }

 private:
  // Steps of an input along the axes of `batch`: 0 where it repeats.
  std::vector<int64_t> steps(const std::vector<int64_t>& shape, int64_t step) const {
    std::vector<int64_t> made(batch.size(), 0);
    for (size_t i = 1; i + 2 <= shape.size(); ++i) {
      int64_t length = shape[shape.size() - 2 - i];
      made[batch.size() - i] = length == 1 ? 0 : step;
      step *= length;
    }
    return made;
  }
};

// Float32 products with one cut: memory for it, and the run.
struct Multiplication {
  int64_t n, k;
  Cut cut;
  bool packed;  // b is given so

  Multiplication(int64_t m, int64_t n, int64_t k, int64_t count, bool packed) : n(n), k(k), cut(m, n, k, count), packed(packed) {}

  bool packs_first() const { return !packed && cut.packs_first(); }
  int64_t packed_floats() const { return packs_first() ? round_up(n, kBlock) * k : 0; }
  int64_t scratch_floats() const { return round_up(cut.scratch_floats(), 16); }
  uint64_t bytes() const {
    return 4 * static_cast<uint64_t>(packed_floats() + scratch_floats() * mge_host->thread_count);
  }

  // Products 0 .. count - 1, each made by `product`.
  template <class F>
  void run(int64_t count, void* workspace, F&& product) const {
    float *packed_b = static_cast<float*>(workspace), *scratch = packed_b + packed_floats();
    if (packs_first()) {  // large products, one after the other
      for (int64_t i = 0; i < count; ++i) {
        Product p = product(i);
        pack(p.b, k, n, packed_b);
        p.packed = packed_b;
        parallel_for(cut.blocks(), 1, [&](int64_t begin, int64_t end, int32_t worker) {
          for (int64_t j = begin; j < end; ++j) Block(p, cut, j, scratch + worker * scratch_floats());
        });
      }
      return;
    }
    const int64_t work = cut.rows * cut.columns * std::max<int64_t>(1, k);
    const int64_t grain = cut.blocks() > 1 ? 1 : std::max<int64_t>(1, Cut::kLeast / 4 / work);
    parallel_for(count * cut.blocks(), grain, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i)
        Block(product(i / cut.blocks()), cut, i % cut.blocks(), scratch + worker * scratch_floats());
    });
  }

  static void pack(const Matrix& b, int64_t k, int64_t n, float* to) {
    const int64_t grain = std::max<int64_t>(8, kPackPart / std::max<int64_t>(1, k * kBlock));
    parallel_for((n + kBlock - 1) / kBlock, grain, [&](int64_t begin, int64_t end) {
      pack_columns(b, 0, k, begin * kBlock, std::min(end * kBlock, n) - begin * kBlock, to + begin * k * kBlock);
    });
  }
  static constexpr int64_t kPackPart = 1 << 16;  // floats
};

constexpr int64_t kPart = 1 << 17;  // floats of a matrix that are worth a chunk
constexpr int64_t kRowPart = 1 << 15;  // and of one that is cut, so that all threads get as much

// `count` times: a matrix times a vector. Its rows are of length k where `by_rows`, else it is given transposed.
template <class Offsets>
void multiply_vectors(int64_t count, int64_t rows, int64_t k, bool by_rows, const float* matrix, const float* x,
                      float* y, const Offsets& offsets) {
  int64_t each = std::max<int64_t>(by_rows ? 4 : 1024, kPart / std::max<int64_t>(1, k));  // 4 KiB of each row at once
  each = std::min(each, std::max<int64_t>(1, rows));
  int64_t parts = (rows + each - 1) / each;
  parallel_for(count * parts, std::max<int64_t>(1, kPart / std::max<int64_t>(1, each * k)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t first = i % parts * each, n = std::min(each, rows - first);
      auto [of_matrix, of_x] = offsets(i / parts);
      float* to = y + i / parts * rows + first;
      if (by_rows)
        dot_rows(matrix + of_matrix + first * k, k, x + of_x, k, n, to);
      else
        sum_rows(matrix + of_matrix + first, rows, x + of_x, k, n, to);
    }
  });
}

Function matmul(const Use& use) {
  const Products s(use);
  if (s.m == 1 || s.n == 1) {
    const bool left = s.n == 1;  // the matrix is the left one
    return [s, left](const Run& run) {
      const float *a = run.in<float>(0), *b = run.in<float>(1);
      auto offsets = [&](int64_t i) {
        ptrdiff_t of_a = s.offset(s.a_batch, i), of_b = s.offset(s.b_batch, i);
        return left ? std::pair(of_a, of_b) : std::pair(of_b, of_a);
      };
      multiply_vectors(s.count, left ? s.m : s.n, s.k, (left ? s.a_step : s.b_row) == 1, left ? a : b, left ? b : a,
                       run.out<float>(0), offsets);
    };
  }
  const Multiplication multiplication(s.m, s.n, s.k, s.count, false);
  return [s, multiplication](const Run& run) {
    if (!s.m || !s.n) return;
    multiplication.run(s.count, run.workspace, [&](int64_t i) {
      Product p{};
      p.m = s.m, p.n = s.n, p.k = s.k;
      p.a = {run.in<float>(0) + s.offset(s.a_batch, i), s.a_row, s.a_step};
      p.b = {run.in<float>(1) + s.offset(s.b_batch, i), s.b_row, s.b_step};
      p.y = run.out<float>(0) + i * s.m * s.n, p.y_row = s.n;
      return p;
    });
  };
}

uint64_t matmul_bytes(const Use& use) {
  const Products s(use);
  return s.m == 1 || s.n == 1 ? 0 : Multiplication(s.m, s.n, s.k, s.count, false).bytes();
}

template <class In, class Out>
Function matmul_portable(const Use& use) {
  const Products s(use);
  return [s](const Run& run) {
    const int64_t each = 8 * kPortableRows, parts = (s.m + each - 1) / each;
    const int64_t grain = std::max<int64_t>(1, kPart / std::max<int64_t>(1, each * s.n * s.k));
    parallel_for(s.count * parts, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t matrix = i / parts, first = i % parts * each;
        multiply_rows<In, Out>(run.in<In>(0) + s.offset(s.a_batch, matrix), s.a_row, s.a_step,
                               run.in<In>(1) + s.offset(s.b_batch, matrix), s.b_row, s.b_step, first,
                               std::min(each, s.m - first), s.n, s.k, run.out<Out>(0) + matrix * s.m * s.n);
      }
    });
  };
}

// linear: a weight (n, k) as it is, and a bias.
Function linear(const Use& use) {
  const int64_t k = use.inputs[1].shape[1], n = use.inputs[1].shape[0], m = product_of(use.outputs[0].shape) / std::max<int64_t>(1, n);
  const Multiplication multiplication(m, n, k, 1, false);
  const bool has_bias = use.inputs.size() > 2;
  return [=](const Run& run) {
    const float* bias = has_bias ? run.in<float>(2) : nullptr;
    float* y = run.out<float>(0);
    if (m == 1) {
      multiply_vectors(1, n, k, true, run.in<float>(1), run.in<float>(0), y,
                       [](int64_t) { return std::pair<ptrdiff_t, ptrdiff_t>(0, 0); });
      for (int64_t i = 0; bias && i < n; ++i) y[i] += bias[i];
    } else if (m && n) {
      Product p{};
      p.m = m, p.n = n, p.k = k, p.a = {run.in<float>(0), k, 1}, p.b = {run.in<float>(1), 1, k};
      p.y = y, p.y_row = n, p.bias = bias;
      multiplication.run(1, run.workspace, [&](int64_t) { return p; });
    }
  };
}

uint64_t linear_bytes(const Use& use) {
  const int64_t n = use.inputs[1].shape[0];
  const int64_t m = product_of(use.outputs[0].shape) / std::max<int64_t>(1, n);
  return m == 1 ? 0 : Multiplication(m, n, use.inputs[1].shape[1], 1, false).bytes();
}

Function pack_matrix(const Use& use) {
  const auto& shape = use.inputs[0].shape;
  const bool turned = use.flag("transpose");
  const int64_t k = shape[turned], n = shape[!turned];
  return [=](const Run& run) {
    Multiplication::pack({run.in<float>(0), turned ? 1 : n, turned ? k : 1}, k, n, run.out<float>(0));
  };
}

// A row times a packed matrix, 16 results at a time.
void packed_row(const Product& p) {
  const int64_t blocks = (p.n + kBlock - 1) / kBlock;
  int64_t each = blocks;  // a chunk: all where the matrix is small, else equal ones
  if (p.k * kBlock * blocks > kPart)
    while (each > 1 && each * p.k * kBlock > kRowPart) each = (each + 1) / 2;
  parallel_for(blocks, each, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float sums[kBlock];
      sum_block(p.packed + i * p.k * kBlock, p.a.at, p.k, sums);
      const int64_t c = i * kBlock, n = std::min<int64_t>(kBlock, p.n - c);
      for (int64_t j = 0; j < n; ++j) {
        float value = sums[j] + (p.bias ? p.bias[c + j] : 0) + (p.residual ? p.residual[c + j] : 0);
        if (p.activation.clip) {  // NaN stays
          value = value < p.activation.low ? p.activation.low : value;
          value = value > p.activation.high ? p.activation.high : value;
        }
        p.y[c + j] = value;
      }
      if (p.activation.rows) p.activation.rows(p.y + c, kBlock, 1, n);
    }
  });
}

struct LinearShape {
  int64_t m, n, k;
  explicit LinearShape(const Use& use) : n(use.integer("columns", 0)), k(use.inputs[0].shape.back()) {
    m = product_of(use.inputs[0].shape) / std::max<int64_t>(1, k);
    if (!k) m = n ? product_of(use.outputs[0].shape) / n : 0;
  }
};

Function packed_linear(const Use& use) {
  const LinearShape s(use);
  const Multiplication multiplication(s.m, s.n, s.k, 1, true);
  const bool has_bias = use.flag("bias"), has_residual = use.flag("residual");
  const Activation activation = activation_of(use.text("activation"));
  return [=](const Run& run) {
    if (!s.m || !s.n) return;
    Product p{};
    p.m = s.m, p.n = s.n, p.k = s.k, p.a = {run.in<float>(0), s.k, 1}, p.packed = run.in<float>(1);
    p.y = run.out<float>(0), p.y_row = p.residual_row = s.n;
    p.bias = has_bias ? run.in<float>(2) : nullptr;
    p.residual = has_residual ? run.in<float>(2 + has_bias) : nullptr;
    p.activation = activation;
    if (s.m == 1)
      packed_row(p);
    else
      multiplication.run(1, run.workspace, [&](int64_t) { return p; });
  };
}

uint64_t packed_linear_bytes(const Use& use) {
  const LinearShape s(use);
  return s.m == 1 ? 0 : Multiplication(s.m, s.n, s.k, 1, true).bytes();
}

template <class... In>
void add_portable(Kernels& kernels) {
  (kernels.prepared<In>("matmul", [](const Use& use) -> Function {
     using Narrow = std::conditional_t<std::is_unsigned_v<In> && !std::is_same_v<In, bool>, uint32_t, int32_t>;
     using Out = std::conditional_t<std::is_integral_v<In> && sizeof(In) < 4, Narrow, In>;
     return matmul_portable<In, Out>(use);
   }), ...);
}

}  // namespace

void add_gemm(Kernels& kernels) {
  kernels.prepared<float>("matmul", matmul).workspace(matmul_bytes);
  kernels.prepared<float>("linear", linear).workspace(linear_bytes);
  kernels.prepared<float>("x86::pack_matrix", pack_matrix);
  kernels.prepared<float>("x86::linear", packed_linear).workspace(packed_linear_bytes).inplace_of(over_residual)
      .named([](const Use& use) { return LinearShape(use).m == 1 ? "x86::linear row" : "x86::linear product"; });
  add_portable<double, bool, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>(kernels);
  also_halves(kernels, {"matmul"});
}
