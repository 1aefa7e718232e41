// Conversion between all dtypes, as NumPy converts; a float outside an integer's range gives what the processor gives.
#include "mge/cpu/elementwise.hpp"

using namespace mge;
using namespace mge::cpu;

namespace {

template <class To, class From>
MGE_INLINE To converted(From x) {
  if constexpr (std::is_same_v<To, bool>)
    return x != 0;
  else if constexpr (!std::is_floating_point_v<From> || std::is_floating_point_v<To>)
    return static_cast<To>(x);
  else if constexpr (sizeof(To) < 4)
    return static_cast<To>(static_cast<int32_t>(x));
  else if constexpr (std::is_same_v<To, uint64_t>)  // the upper half has no signed number
    return x < From(0x1p63) ? static_cast<uint64_t>(static_cast<int64_t>(x))
                            : static_cast<uint64_t>(static_cast<int64_t>(x - From(0x1p63))) ^ (uint64_t(1) << 63);
  else
    return static_cast<To>(static_cast<std::conditional_t<std::is_same_v<To, int32_t>, int32_t, int64_t>>(x));
}

template <class To, class From>
Block cast_block() {
  return [](const void* const* in, void* out, int64_t n) {
    map_scalars(n, static_cast<To*>(out), [](From v) { return converted<To>(v); }, static_cast<const From*>(in[0]));
  };
}

// The blocks between the C++ types. Integers of one size are one target: only their source has a sign.
template <class From>
Block cast_to(MgeDataType to) {
  if (to == dtype_of<bool>()) return cast_block<bool, From>();
  if (to == dtype_of<float>()) return cast_block<float, From>();
  if (to == dtype_of<double>()) return cast_block<double, From>();
  if constexpr (std::is_floating_point_v<From>) {
    if (to == dtype_of<uint64_t>()) return cast_block<uint64_t, From>();
    if (to == dtype_of<int32_t>()) return cast_block<int32_t, From>();
  }
  switch (to.bits) {
    case 8: return cast_block<int8_t, From>();
    case 16: return cast_block<int16_t, From>();
    case 32: return cast_block<uint32_t, From>();
    default: return cast_block<int64_t, From>();
  }
}

template <class Half>
Block from_half() {
  return [](const void* const* in, void* out, int64_t n) {
    widen(static_cast<const Half*>(in[0]), static_cast<float*>(out), n);
  };
}
template <class Half>
Block to_half() {
  return [](const void* const* in, void* out, int64_t n) {
    narrow(static_cast<const float*>(in[0]), static_cast<Half*>(out), n);
  };
}

// Two conversions, through a buffer of float32.
Block through_float(Block first, int64_t from_size, Block second, int64_t to_size) {
  return [=](const void* const* in, void* out, int64_t n) {
    float buffer[kBuffer];
    const void* wide[] = {buffer};
    for (int64_t at = 0; at < n; at += kBuffer) {
      int64_t part = std::min(kBuffer, n - at);
      const void* source[] = {static_cast<const char*>(in[0]) + at * from_size};
      first(source, buffer, part);
      second(wide, static_cast<char*>(out) + at * to_size, part);
    }
  };
}

Block block_of(MgeDataType from, MgeDataType to) {
  const auto half = dtype_of<float16>(), bfloat = dtype_of<bfloat16>(), single = dtype_of<float>();
  if (from == to)
    return [size = itemsize(to)](const void* const* in, void* out, int64_t n) { std::memmove(out, in[0], n * size); };
  if (from == half || from == bfloat) {
    Block first = from == half ? from_half<float16>() : from_half<bfloat16>();
    return to == single ? first : through_float(first, 2, block_of(single, to), itemsize(to));
  }
  if (to == half || to == bfloat) {
    Block last = to == half ? to_half<float16>() : to_half<bfloat16>();
    return from == single ? last : through_float(block_of(from, single), itemsize(from), last, 2);
  }
  Block block;
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float, double>(
      [&](auto tag) {
        using From = typename decltype(tag)::type;
        if (from == dtype_of<From>()) block = cast_to<From>(to);
      });
  return block;
}

Function cast(const Use& use) {
  return broadcast(use, block_of(use.inputs[0].dtype, use.outputs[0].dtype), kCheap);
}

}  // namespace

void add_cast(Kernels& kernels) {
  for_types<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float16, bfloat16, float,
            double>([&](auto tag) { kernels.prepared<typename decltype(tag)::type>("cast", cast); });
}
