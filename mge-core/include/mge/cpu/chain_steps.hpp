// mge/cpu/chain_steps.hpp: the steps that loops are made of, each a function over a run of floats.
//
// In: the name of a step, and which of its operands are single numbers. Out: `find_step`, `joined_name`.
// After math.hpp; before chain.hpp.
//
// Truth values are 1 and 0. A joined step, as "sub+square", is two steps whose value between stays in a register.
#ifndef MGE_CPU_CHAIN_STEPS_HPP
#define MGE_CPU_CHAIN_STEPS_HPP

#include <array>
#include <map>
#include <string>
#include <utility>

#include "mge/cpu/math.hpp"

namespace mge::cpu {

// y[0 .. n - 1] from operands of as many numbers, or one. Of a reduction: y[0].
using ChainStep = void (*)(float* y, const float* const* x, int64_t n);

struct StepTable {
  int operands = 0;
  std::array<ChainStep, 8> by_scalars{};  // bit k: operand k is a single number
};

namespace chain {

MGE_INLINE vf truth(vi mask) { return select(mask, splat(1.0f), splat(0.0f)); }
MGE_INLINE vf square(vf x) { return x * x; }
MGE_INLINE vf rsqrt(vf x) { return 1.0f / cpu::sqrt(x); }
MGE_INLINE vf reciprocal(vf x) { return 1.0f / x; }
MGE_INLINE vf negative(vf x) { return -x; }
MGE_INLINE vf itself(vf x) { return x; }
MGE_INLINE vf logical_not(vf x) { return truth(x == 0.0f); }

// The functions as types, so that templates can be made of them.
template <vf (*function)(vf)>
struct Unary {
  MGE_INLINE vf operator()(vf x) const { return function(x); }
};
struct Add { MGE_INLINE vf operator()(vf a, vf b) const { return a + b; } };
struct Sub { MGE_INLINE vf operator()(vf a, vf b) const { return a - b; } };
struct SubFrom { MGE_INLINE vf operator()(vf a, vf b) const { return b - a; } };
struct Mul { MGE_INLINE vf operator()(vf a, vf b) const { return a * b; } };
struct Div { MGE_INLINE vf operator()(vf a, vf b) const { return a / b; } };
struct Maximum { MGE_INLINE vf operator()(vf a, vf b) const { return maximum(a, b); } };
struct Minimum { MGE_INLINE vf operator()(vf a, vf b) const { return minimum(a, b); } };
struct Less { MGE_INLINE vf operator()(vf a, vf b) const { return truth(a < b); } };
struct LessEqual { MGE_INLINE vf operator()(vf a, vf b) const { return truth(a <= b); } };
struct Equal { MGE_INLINE vf operator()(vf a, vf b) const { return truth(a == b); } };
struct And { MGE_INLINE vf operator()(vf a, vf b) const { return truth((a != 0.0f) & (b != 0.0f)); } };
struct Or { MGE_INLINE vf operator()(vf a, vf b) const { return truth((a != 0.0f) | (b != 0.0f)); } };
struct Where { MGE_INLINE vf operator()(vf m, vf a, vf b) const { return select(m != 0.0f, a, b); } };
// a * b + c and its like, rounded once.
struct MulAdd { MGE_INLINE vf operator()(vf a, vf b, vf c) const { return fma(a, b, c); } };
struct MulSub { MGE_INLINE vf operator()(vf a, vf b, vf c) const { return fma(a, b, -c); } };
struct MulSubFrom { MGE_INLINE vf operator()(vf a, vf b, vf c) const { return fma(-a, b, c); } };
template <class First, class Second>
struct Then1 {  // second(first(a, b))
  MGE_INLINE vf operator()(vf a, vf b) const { return Second()(First()(a, b)); }
};
template <class First, class Second>
struct Then2 {  // second(first(a, b), c)
  MGE_INLINE vf operator()(vf a, vf b, vf c) const { return Second()(First()(a, b), c); }
};

template <unsigned kScalars, size_t k, class Load>
MGE_INLINE vf operand(const vf* numbers, const Load& load_from, const float* x) {
  if constexpr (kScalars >> k & 1)
    return numbers[k];
  else
    return load_from(x);
}

template <class F, unsigned kScalars, size_t... k>
void map(float* y, const float* const* x, int64_t n, std::index_sequence<k...>) {
  const vf numbers[] = {kScalars >> k & 1 ? splat(*x[k]) : vf{}...};
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const auto low = [i](const float* p) { return load(p + i); };
    const auto high = [i](const float* p) { return load(p + i + kWidth); };
    const vf a = F()(operand<kScalars, k>(numbers, low, x[k])...);
    const vf b = F()(operand<kScalars, k>(numbers, high, x[k])...);
    store(y + i, a);
    store(y + i + kWidth, b);
  }
  for (; i < n; i += kWidth) {
    const int64_t rest = n - i < kWidth ? n - i : kWidth;
    const auto some = [i, rest](const float* p) { return load_n(p + i, rest); };
    store_n(y + i, F()(operand<kScalars, k>(numbers, some, x[k])...), rest);
  }
}

// Reductions: in four running vectors, which are then joined in a fixed order.
struct Sum {
  static constexpr float kStart = 0.0f;
  MGE_INLINE vf operator()(vf a, vf b) const { return a + b; }
  static float lanes(vf x) { return cpu::sum(x); }
};
template <class Join>
struct Extreme {
  static constexpr float kStart = std::is_same_v<Join, Maximum> ? -kInfinity : kInfinity;
  MGE_INLINE vf operator()(vf a, vf b) const { return Join()(a, b); }
  static float lanes(vf x) {
    float y = x[0];
    for (int i = 1; i < kWidth; ++i)
      y = y != y ? y : x[i] != x[i] ? x[i] : (std::is_same_v<Join, Maximum> ? x[i] > y : x[i] < y) ? x[i] : y;
    return y;
  }
};

template <class R, class F, unsigned kScalars, size_t... k>
void reduce(float* y, const float* const* x, int64_t n, std::index_sequence<k...>) {
  const vf numbers[] = {kScalars >> k & 1 ? splat(*x[k]) : vf{}...};
  vf running[4] = {splat(R::kStart), splat(R::kStart), splat(R::kStart), splat(R::kStart)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    MGE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const auto part = [i, j](const float* p) { return load(p + i + j * kWidth); };
      running[j] = R()(running[j], F()(operand<kScalars, k>(numbers, part, x[k])...));
    }
  }
  for (int j = 0; i < n; i += kWidth, ++j) {
    const int64_t rest = n - i < kWidth ? n - i : kWidth;
    const auto some = [i, rest](const float* p) { return load_n(p + i, rest); };
    vf v = F()(operand<kScalars, k>(numbers, some, x[k])...);
    for (int64_t lane = rest; lane < kWidth; ++lane) v[lane] = R::kStart;
    running[j] = R()(running[j], v);
  }
  *y = R::lanes(R()(R()(running[0], running[1]), R()(running[2], running[3])));
}

template <class F, size_t kOperands>
struct Mapped {
  template <unsigned kScalars>
  static void run(float* y, const float* const* x, int64_t n) {
    map<F, kScalars>(y, x, n, std::make_index_sequence<kOperands>());
  }
};
template <class R, class F, size_t kOperands>
struct Reduced {
  template <unsigned kScalars>
  static void run(float* y, const float* const* x, int64_t n) {
    reduce<R, F, kScalars>(y, x, n, std::make_index_sequence<kOperands>());
  }
};
template <class Family, size_t kOperands, size_t... scalars>
StepTable table_of(std::index_sequence<scalars...>) {
  return {static_cast<int>(kOperands), {&Family::template run<scalars>...}};
}

inline void from_bool(float* y, const float* const* x, int64_t n) {
  const auto* truths = reinterpret_cast<const uint8_t*>(x[0]);
  for (int64_t i = 0; i < n; ++i) y[i] = truths[i] ? 1.0f : 0.0f;
}
inline void to_bool(float* y, const float* const* x, int64_t n) {
  auto* truths = reinterpret_cast<uint8_t*>(y);
  for (int64_t i = 0; i < n; ++i) truths[i] = x[0][i] != 0.0f;
}

class Steps {
 public:
  Steps() {
    mapped<Unary<itself>, 1>("copy");
    mapped<Unary<negative>, 1>("neg"), mapped<Unary<cpu::abs>, 1>("abs"), mapped<Unary<cpu::sqrt>, 1>("sqrt");
    mapped<Unary<cpu::exp>, 1>("exp"), mapped<Unary<cpu::log>, 1>("log"), mapped<Unary<cpu::tanh>, 1>("tanh");
    mapped<Unary<cpu::erf>, 1>("erf"), mapped<Unary<sigmoid>, 1>("sigmoid"), mapped<Unary<relu>, 1>("relu");
    mapped<Unary<relu6>, 1>("relu6"), mapped<Unary<silu>, 1>("silu"), mapped<Unary<hswish>, 1>("hswish");
    mapped<Unary<hsigmoid>, 1>("hsigmoid"), mapped<Unary<square>, 1>("square"), mapped<Unary<rsqrt>, 1>("rsqrt");
    mapped<Unary<cpu::expm1>, 1>("expm1"), mapped<Unary<cpu::log1p>, 1>("log1p"), mapped<Unary<cpu::sin>, 1>("sin");
    mapped<Unary<cpu::cos>, 1>("cos"), mapped<Unary<cpu::floor>, 1>("floor"), mapped<Unary<cpu::ceil>, 1>("ceil");
    mapped<Unary<cpu::round>, 1>("round"), mapped<Unary<softplus>, 1>("softplus"), mapped<Unary<gelu>, 1>("gelu");
    mapped<Unary<gelu_tanh>, 1>("gelu_tanh"), mapped<Unary<reciprocal>, 1>("reciprocal");
    mapped<Unary<logical_not>, 1>("not");
    mapped<Add, 2>("add"), mapped<Sub, 2>("sub"), mapped<Mul, 2>("mul"), mapped<Div, 2>("div");
    mapped<Maximum, 2>("maximum"), mapped<Minimum, 2>("minimum"), mapped<Less, 2>("less");
    mapped<LessEqual, 2>("less_equal"), mapped<Equal, 2>("equal"), mapped<And, 2>("and"), mapped<Or, 2>("or");
    mapped<Where, 3>("where");
    all_["from_bool"] = {1, {from_bool}};
    all_["to_bool"] = {1, {to_bool}};
    reduced<Sum, Unary<itself>, 1>("sum");
    reduced<Extreme<Maximum>, Unary<itself>, 1>("max");
    reduced<Extreme<Minimum>, Unary<itself>, 1>("min");
    after<Add>("add"), after<Sub>("sub"), after<Mul>("mul");
    mapped<MulAdd, 3>("mul+add"), mapped<MulSub, 3>("mul+sub"), mapped<MulSubFrom, 3>("mul+sub_from");
    reduced<Sum, Mul, 2>("mul+sum"), reduced<Sum, Unary<square>, 1>("square+sum");
  }

  const StepTable* find(const std::string& name) const {
    auto found = all_.find(name);
    return found == all_.end() ? nullptr : &found->second;
  }

 private:
  template <class F, size_t kOperands>
  void mapped(const char* name) {
    all_[name] = table_of<Mapped<F, kOperands>, kOperands>(std::make_index_sequence<1u << kOperands>());
  }
  template <class R, class F, size_t kOperands>
  void reduced(const char* name) {
    all_[name] = table_of<Reduced<R, F, kOperands>, kOperands>(std::make_index_sequence<1u << kOperands>());
  }
  // What may follow a step of two operands in the same register.
  template <class First>
  void after(const std::string& first) {
    mapped<Then2<First, Add>, 3>((first + "+add").c_str()), mapped<Then2<First, Sub>, 3>((first + "+sub").c_str());
    mapped<Then2<First, SubFrom>, 3>((first + "+sub_from").c_str());
    mapped<Then2<First, Mul>, 3>((first + "+mul").c_str());
    mapped<Then1<First, Unary<square>>, 2>((first + "+square").c_str());
    mapped<Then1<First, Unary<cpu::exp>>, 2>((first + "+exp").c_str());
    mapped<Then1<First, Unary<relu>>, 2>((first + "+relu").c_str());
    mapped<Then1<First, Unary<gelu>>, 2>((first + "+gelu").c_str());
    mapped<Then1<First, Unary<sigmoid>>, 2>((first + "+sigmoid").c_str());
    mapped<Then1<First, Unary<cpu::tanh>>, 2>((first + "+tanh").c_str());
    mapped<Then1<First, Unary<rsqrt>>, 2>((first + "+rsqrt").c_str());
  }

  std::map<std::string, StepTable> all_;
};

inline const Steps& steps() {
  static const Steps* all = new Steps;  // never deleted: chains live as long as the process
  return *all;
}

}  // namespace chain

inline bool is_reduction(const std::string& name) {
  const size_t size = name.size();
  const std::string last = name.substr(size < 3 ? 0 : size - 3);
  return last == "sum" || name == "max" || name == "min";
}

// The function of a step; throws where there is none, or it takes another number of operands.
inline ChainStep find_step(const std::string& name, size_t operands, unsigned scalars) {
  const StepTable* found = chain::steps().find(name);
  if (!found || static_cast<size_t>(found->operands) != operands || !found->by_scalars[scalars])
    throw Failure(MGE_BAD_ARGUMENT, "loop: there is no step " + name + " of such operands");
  return found->by_scalars[scalars];
}

// The name of two steps as one, or "". `left`: the first one's value is the second one's first operand.
inline std::string joined_name(const std::string& first, const std::string& second, bool left) {
  std::string name = first + "+" + second;
  if (!left && second == "sub") name += "_from";
  const bool turns = left || second == "add" || second == "mul" || second == "sub";
  return turns && chain::steps().find(name) ? name : "";
}

}  // namespace mge::cpu

#endif  // MGE_CPU_CHAIN_STEPS_HPP
