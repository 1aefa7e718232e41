// Arithmetic on integers and bools: it wraps, as NumPy's.
#include "mge/cpu/elementwise.hpp"

using namespace mge;
using namespace mge::cpu;

namespace {

template <class T, class F>
void add_one(Kernels& kernels, const char* op, F f) {
  add_block(kernels, op, dtype_of<T>(), 1, true, unary_block<T>(f));
}
template <class T, class F>
void add_two(Kernels& kernels, const char* op, F f) {
  add_block(kernels, op, dtype_of<T>(), 2, true, binary_block<T>(f));
}

// The bounds of clip and relu6 as integers; a bound outside T's range is T's own.
template <class T>
T bounded(double x) {
  using Limits = std::numeric_limits<T>;
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  return x >= static_cast<double>(Limits::max()) ? Limits::max() : static_cast<T>(x);
}

template <class T>
void add_clips(Kernels& kernels) {
  auto add = [&](const char* op, auto bounds) {
    add_blocks(kernels, op, dtype_of<T>(), 1, true, [bounds](const Use& use) {
      std::pair<double, double> given = bounds(use);
      T low = bounded<T>(given.first), high = bounded<T>(given.second);
      return unary_block<T>([low, high](T x) { return minimum(maximum(x, low), high); });
    });
  };
  add("clip", [](const Use& use) {
    return std::make_pair(use.number("lower", -HUGE_VAL), use.number("upper", HUGE_VAL));
  });
  add("relu", [](const Use&) { return std::make_pair(0.0, HUGE_VAL); });
  add("relu6", [](const Use&) { return std::make_pair(0.0, 6.0); });
}

// Ops whose bits are the same for the unsigned type U and the signed one of its size.
template <class U>
void add_by_bits(Kernels& kernels) {
  auto add = [&](const char* op, int inputs, Block block) {
    add_block(kernels, op, dtype_of<U>(), inputs, true, block);
    add_block(kernels, op, dtype_of<std::make_signed_t<U>>(), inputs, true, block);
  };
  add("add", 2, binary_block<U>([](U x, U y) { return unsigned_of(x) + unsigned_of(y); }));
  add("sub", 2, binary_block<U>([](U x, U y) { return unsigned_of(x) - unsigned_of(y); }));
  add("mul", 2, binary_block<U>([](U x, U y) { return unsigned_of(x) * unsigned_of(y); }));
  add("bitwise_and", 2, binary_block<U>([](U x, U y) { return x & y; }));
  add("bitwise_or", 2, binary_block<U>([](U x, U y) { return x | y; }));
  add("bitwise_xor", 2, binary_block<U>([](U x, U y) { return x ^ y; }));
  add("bitwise_not", 1, unary_block<U>([](U x) { return ~x; }));
  add("neg", 1, unary_block<U>([](U x) { return 0 - unsigned_of(x); }));
  add("square", 1, unary_block<U>([](U x) { return unsigned_of(x) * unsigned_of(x); }));
  for (const char* op : {"floor", "ceil", "round"}) add(op, 1, unary_block<U>([](U x) { return x; }));
}

template <class T>
void add_integer_ops(Kernels& kernels) {
  add_two<T>(kernels, "maximum", [](T x, T y) { return maximum(x, y); });
  add_two<T>(kernels, "minimum", [](T x, T y) { return minimum(x, y); });
  add_two<T>(kernels, "floor_div", [](T x, T y) { return floor_divide(x, y); });
  add_two<T>(kernels, "mod", [](T x, T y) { return cpu::remainder(x, y); });
  add_two<T>(kernels, "pow", [](T x, T y) { return integer_power(x, y); });
  add_two<T>(kernels, "left_shift", [](T x, T y) { return shift_left(x, y); });
  add_two<T>(kernels, "right_shift", [](T x, T y) { return shift_right(x, y); });
  add_one<T>(kernels, "abs", [](T x) { return x < 0 ? 0 - unsigned_of(x) : unsigned_of(x); });
  add_one<T>(kernels, "sign", [](T x) { return (x > 0) - (x < 0); });
  add_blocks(kernels, "pow_scalar", dtype_of<T>(), 1, true, [](const Use& use) {
    T exponent = static_cast<T>(use.number("exponent", 1));
    return unary_block<T>([exponent](T x) { return integer_power(x, exponent); });
  });
  add_clips<T>(kernels);
}

void add_bool_ops(Kernels& kernels) {
  for (const char* op : {"add", "maximum", "bitwise_or"})
    add_two<bool>(kernels, op, [](bool x, bool y) { return x | y; });
  for (const char* op : {"mul", "minimum", "bitwise_and"})
    add_two<bool>(kernels, op, [](bool x, bool y) { return x & y; });
  add_two<bool>(kernels, "bitwise_xor", [](bool x, bool y) { return x != y; });
  add_one<bool>(kernels, "bitwise_not", [](bool x) { return !x; });
  for (const char* op : {"abs", "floor", "ceil", "round"}) add_one<bool>(kernels, op, [](bool x) { return x; });
}

}  // namespace

void add_integer(Kernels& kernels) {
  for_types<uint8_t, uint16_t, uint32_t, uint64_t>(
      [&](auto tag) { add_by_bits<typename decltype(tag)::type>(kernels); });
  for_types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(
      [&](auto tag) { add_integer_ops<typename decltype(tag)::type>(kernels); });
  add_bool_ops(kernels);
}
