// random_bits, advance, uniform, normal, permutation, keyed_dropout: functions of a generator's state.
#include <algorithm>
#include <cmath>

#include "mge/cpu/lane.hpp"
#include "mge/cpu/philox.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

template <class T>
constexpr int kBits = std::is_same_v<T, float16> ? 11 : std::is_same_v<T, bfloat16> ? 8 : 24;  // exact in T

template <class T, class Wide>
MGE_INLINE T rounded(Wide x) {
  if constexpr (std::is_same_v<T, Wide>)
    return x;
  else
    return from_float<T>(x);
}

// The product and the sum are rounded one after the other on all devices, so the sum is a loop of its own: compilers
// join the two only within an expression.
template <class T>
void spread(T* x, int64_t n, T factor, T shift) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
  asm volatile("" : : "r"(x) : "memory");
  for (int64_t i = 0; i < n; ++i) x[i] += shift;
}

template <class T>
Function uniform(const Use& use) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const int64_t size = use.outputs[0].size(), each = std::is_same_v<T, double> ? 2 : 1;
  const double low = use.number("low", 0), high = use.number("high", 1);
  const bool is_unit = low == 0 && high == 1;
  return [=](const Run& run) {
    T* y = run.out<T>(0);
    over_words(run.in<uint64_t>(0), size * each, [=](int64_t begin, int64_t end, const uint32_t* words) {
      Wide space[kDraw];
      const int64_t n = (end - begin) / each;
      if constexpr (std::is_same_v<T, double>)
        for (int64_t i = 0; i < n; ++i) space[i] = unit(words[2 * i], words[2 * i + 1]);
      else
        for (int64_t i = 0; i < n; ++i) space[i] = unit<kBits<T>>(words[i]);
      if (!is_unit) spread(space, n, static_cast<Wide>(high - low), static_cast<Wide>(low));
      T* to = y + begin / each;
      for (int64_t i = 0; i < n; ++i) to[i] = rounded<T>(space[i]);
    });
  };
}

// Pairs of Box and Muller, in float32 or float64.
template <class T>
Function normal(const Use& use) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using L = Lane<Wide>;
  const int64_t size = use.outputs[0].size(), each = std::is_same_v<T, double> ? 2 : 1;
  const Wide mean = static_cast<Wide>(use.number("mean", 0)), std = static_cast<Wide>(use.number("std", 1));
  return [=](const Run& run) {
    T* y = run.out<T>(0);
    over_words(run.in<uint64_t>(0), (size + size % 2) * each, [=](int64_t begin, int64_t end, const uint32_t* words) {
      Wide radius[kDraw / 2], angle[kDraw / 2], other[kDraw / 2];
      const int64_t n = (end - begin) / each, pairs = n / 2;
      for (int64_t i = 0; i < pairs; ++i) {
        if constexpr (std::is_same_v<T, double>)
          radius[i] = 1 - unit(words[4 * i], words[4 * i + 1]), angle[i] = unit(words[4 * i + 2], words[4 * i + 3]);
        else
          radius[i] = 1 - unit<24>(words[2 * i]), angle[i] = unit<24>(words[2 * i + 1]);
      }
      walk<Wide>(pairs, [&](int64_t i, auto m) {
        auto r = cpu::sqrt(cpu::log(L::get(radius + i, m)) * Wide(-2)) * std;
        auto t = L::get(angle + i, m) * static_cast<Wide>(2 * M_PI);
        L::put(other + i, r * cpu::sin(t) + mean, m);
        L::put(radius + i, r * cpu::cos(t) + mean, m);
      });
      T* to = y + begin / each;
      const int64_t last = std::min(n, size - begin / each);
      for (int64_t i = 0; i < last; ++i) to[i] = rounded<T>(i % 2 ? other[i / 2] : radius[i / 2]);
    });
  };
}

// Where the word is below the threshold 0, else x * scale.
template <class T>
Function dropout(const Use& use) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const double share = use.number("drop_prob", 0);
  const uint32_t threshold = static_cast<uint32_t>(std::min(std::ceil(share * 0x1p32), 0x1p32 - 1));
  const Wide scale = static_cast<Wide>(1 / (1 - share));
  return [=, size = use.outputs[0].size()](const Run& run) {
    const T* x = run.in<T>(0);
    T* y = run.out<T>(0);
    over_words(run.in<uint64_t>(1), size, [=](int64_t begin, int64_t end, const uint32_t* words) {
      for (int64_t i = begin; i < end; ++i) {
        Wide v;
        if constexpr (std::is_same_v<T, Wide>)
          v = x[i] * scale;
        else
          v = to_float(x[i]) * scale;
        y[i] = rounded<T>(words[i - begin] >= threshold ? v : Wide(0));
      }
    });
  };
}

Function permutation(const Use& use) {
  return [n = use.outputs[0].size()](const Run& run) {
    std::vector<std::pair<uint64_t, int32_t>> keys(static_cast<size_t>(n));
    over_words(run.in<uint64_t>(0), 2 * n, [&](int64_t begin, int64_t end, const uint32_t* words) {
      for (int64_t i = begin; i < end; i += 2)
        keys[static_cast<size_t>(i / 2)] = {uint64_t(words[i - begin]) << 32 | words[i - begin + 1],
                                            static_cast<int32_t>(i / 2)};
    });
    std::sort(keys.begin(), keys.end());  // equal keys by number: the order of a stable sort
    for (int64_t i = 0; i < n; ++i) run.out<int32_t>(0)[i] = keys[static_cast<size_t>(i)].second;
  };
}

}  // namespace

void add_random(Kernels& kernels) {
  kernels.add<uint64_t>("random_bits", [](const Run& run) {
    uint32_t* y = run.out<uint32_t>(0);
    over_words(run.in<uint64_t>(0), run.use.outputs[0].size(), [=](int64_t begin, int64_t end, const uint32_t* words) {
      std::copy(words, words + (end - begin), y + begin);
    });
  });
  kernels
      .add<uint64_t>("advance",
                     [](const Run& run) {
                       const uint64_t *state = run.in<uint64_t>(0), next = state[1] + run.use.integer("count", 0);
                       run.out<uint64_t>(0)[0] = state[0], run.out<uint64_t>(0)[1] = next;
                     })
      .inplace(0);
  kernels.prepared<uint64_t>("permutation", permutation);
  for_types<float, double, float16, bfloat16>([&](auto tag) {
    using T = typename decltype(tag)::type;
    const Refusal other = [](const Use& use) {
      return use.outputs[0].dtype == dtype_of<T>() ? "" : "no kernel for this dtype";
    };
    kernels.prepared<uint64_t>("uniform", uniform<T>).unless(other);
    kernels.prepared<uint64_t>("normal", normal<T>).unless(other);
    kernels.prepared<T>("keyed_dropout", dropout<T>).inplace(0);
  });
}
