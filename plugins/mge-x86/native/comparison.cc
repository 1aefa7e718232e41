// Ops whose result is bool, and `where`.
#include "mge/cpu/elementwise.hpp"

using namespace mge;
using namespace mge::cpu;

namespace {

template <class T, class F>
Block to_bool(F f) {
  if constexpr (std::is_invocable_v<F, T, T>)
    return binary_block<T, bool>(f);
  else
    return unary_block<T, bool>(f);
}

void add(Kernels& kernels, const char* op, MgeDataType dtype, int inputs, Block block) {
  add_block(kernels, op, dtype, inputs, dtype == dtype_of<bool>(), std::move(block));
}
void add_narrow_floats(Kernels& kernels, const char* op, int inputs, Block block) {
  add(kernels, op, dtype_of<float>(), inputs, block);
  add(kernels, op, dtype_of<float16>(), inputs, widened<float16>(block, inputs, false));
  add(kernels, op, dtype_of<bfloat16>(), inputs, widened<bfloat16>(block, inputs, false));
}

// An order, and the one with its sides exchanged.
template <class F>
void add_order(Kernels& kernels, const char* op, const char* opposite, F f) {
  auto exchanged = [](Block block) -> Block {
    return [block](const void* const* in, void* out, int64_t n) {
      const void* other[] = {in[1], in[0]};
      block(other, out, n);
    };
  };
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    Block block = to_bool<T>(f);
    add(kernels, op, dtype_of<T>(), 2, block);
    add(kernels, opposite, dtype_of<T>(), 2, exchanged(block));
  });
  add_narrow_floats(kernels, op, 2, to_bool<float>(f));
  add_narrow_floats(kernels, opposite, 2, exchanged(to_bool<float>(f)));
}

// What does not depend on the sign of an integer.
template <class F>
void add_test(Kernels& kernels, const char* op, int inputs, F f) {
  for_types<uint8_t, uint16_t, uint32_t, uint64_t>([&](auto tag) {
    using U = typename decltype(tag)::type;
    Block block = to_bool<U>(f);
    add(kernels, op, dtype_of<U>(), inputs, block);
    add(kernels, op, dtype_of<std::make_signed_t<U>>(), inputs, block);
  });
  add(kernels, op, dtype_of<bool>(), inputs, to_bool<bool>(f));
  add(kernels, op, dtype_of<double>(), inputs, to_bool<double>(f));
  add_narrow_floats(kernels, op, inputs, to_bool<float>(f));
}

// A test of floats, which all integers and bools answer alike.
template <class F>
void add_float_test(Kernels& kernels, const char* op, bool of_integers, F f) {
  Block fill = [of_integers](const void* const*, void* out, int64_t n) {
    std::memset(out, of_integers, static_cast<size_t>(n));
  };
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>([&](auto tag) {
    add(kernels, op, dtype_of<typename decltype(tag)::type>(), 1, fill);
  });
  add(kernels, op, dtype_of<double>(), 1, to_bool<double>(f));
  add_narrow_floats(kernels, op, 1, to_bool<float>(f));
}

void add_comparisons(Kernels& kernels) {
  add_order(kernels, "less", "greater", [](auto x, auto y) { return x < y; });
  add_order(kernels, "less_equal", "greater_equal", [](auto x, auto y) { return x <= y; });
  add_test(kernels, "equal", 2, [](auto x, auto y) { return x == y; });
  add_test(kernels, "not_equal", 2, [](auto x, auto y) { return x != y; });
  add_test(kernels, "logical_and", 2, [](auto x, auto y) { return (x != 0) & (y != 0); });
  add_test(kernels, "logical_or", 2, [](auto x, auto y) { return (x != 0) | (y != 0); });
  add_test(kernels, "logical_xor", 2, [](auto x, auto y) { return (x != 0) != (y != 0); });
  add_test(kernels, "logical_not", 1, [](auto x) { return x == 0; });
  add_float_test(kernels, "isnan", false, [](auto x) { return x != x; });
  add_float_test(kernels, "isinf", false, [](auto x) { return (x - x != 0) & (x == x); });
  add_float_test(kernels, "isfinite", true, [](auto x) { return x - x == 0; });
}

// z = mask ? x : y on elements of a size, whatever they are. Without a branch, which the compiler would not vectorise.
template <class T>
Block where_block() {
  return [](const void* const* in, void* out, int64_t n) {
    auto* mask = static_cast<const bool*>(in[0]);
    auto *x = static_cast<const T*>(in[1]), *y = static_cast<const T*>(in[2]);
    auto* z = static_cast<T*>(out);
    int64_t i = 0;
    if constexpr (std::is_same_v<T, int32_t>) {
      typedef int8_t Mask __attribute__((vector_size(kWidth)));
      for (; i + kWidth <= n; i += kWidth) {
        vi wide = __builtin_convertvector(load_as<Mask>(mask + i), vi);
        store(z + i, select(wide != 0, load(x + i), load(y + i)));
      }
    }
    map_scalars(n - i, z + i, [](bool m, T a, T b) { return b ^ ((a ^ b) & T(-T(m))); }, mask + i, x + i, y + i);
  };
}

}  // namespace

void add_comparison(Kernels& kernels) {
  add_comparisons(kernels);
  kernels.prepared<bool>("where", [](const Use& use) {
    switch (itemsize(use.outputs[0].dtype)) {
      case 1: return broadcast(use, where_block<uint8_t>(), kCheap);
      case 2: return broadcast(use, where_block<uint16_t>(), kCheap);
      case 4: return broadcast(use, where_block<int32_t>(), kCheap);
      default: return broadcast(use, where_block<uint64_t>(), kCheap);
    }
  }).inplace(1).inplace(2);
}
