// Optimizer updates of a group of parameters in one pass over the memory; global_norm, all_finite, scale_all.
#include "mge/cpu/update.hpp"

#include <limits>

namespace {

using namespace mge;
using namespace mge::cpu;

// Where what stands among the inputs: parameters, gradients, kinds of state, counters, scalars, found_inf.
struct Layout {
  int64_t count, states, steps;
  bool has_found_inf;

  Layout(const Use& use, int64_t states)
      : count(use.integer("count", 1)), states(states), steps(use.integer("steps", 0)),
        has_found_inf(use.flag("has_found_inf")) {}

  int64_t scalar(int64_t i) const { return (2 + states) * count + steps + i; }
  // The input that an output replaces.
  int64_t old(int64_t output) const { return output < count ? output : output + count; }
  int64_t outputs() const { return (1 + states) * count + steps; }
};

Pairs pairs_of(int64_t states) {
  return [=](const Use& use) {
    const Layout layout(use, states);
    std::vector<MgeInplacePair> pairs;
    for (int64_t o = 0; o < layout.outputs(); ++o)
      pairs.push_back({static_cast<uint32_t>(layout.old(o)), static_cast<uint32_t>(o)});
    return pairs;
  };
}

// Returns whether the update is to be left out; then the outputs are the old values.
bool skipped(const Run& run, const Layout& layout) {
  if (!layout.has_found_inf || !read_number(*run.inputs[run.use.inputs.size() - 1])) return false;
  for (int64_t o = 0; o < layout.outputs(); ++o) {
    const MgeTensor &from = *run.inputs[layout.old(o)], &to = *run.outputs[o];
    const Type& type = run.use.outputs[static_cast<size_t>(o)];
    if (from.data != to.data && type.size())
      std::memcpy(to.data, from.data, static_cast<size_t>(type.size()) * (type.dtype.bits / 8));
  }
  return true;
}

// The counts of steps with this one, written to their outputs. Reads them first: outputs may lie over inputs.
std::vector<double> count_steps(const Run& run, const Layout& layout) {
  std::vector<double> counts;
  const MgeTensor* const* olds = run.inputs + layout.scalar(0) - layout.steps;
  MgeTensor* const* news = run.outputs + layout.outputs() - layout.steps;
  for (int64_t i = 0; i < layout.steps; ++i) counts.push_back(read_number(*olds[i]) + 1);
  for (int64_t i = 0; i < layout.steps; ++i) write_number(*news[i], counts[static_cast<size_t>(i)]);
  return counts;
}

template <class T, class V>
V decayed(V grad, V param, T decay) {
  return decay != 0 ? param * decay + grad : grad;
}

double bias(double beta, double t) { return beta ? -std::expm1(t * std::log(beta)) : 1.0; }

// A rule is made for each parameter: Rule(use, t, scalars); rule<T>() gives what works on a vector v of
// (param, state..., grad), and overwrites all but the gradient.
template <int states, class Rule>
void add_update(Kernels& kernels, const char* op, const Refusal& refusal = {}) {
  const Maker make = [](const Use& use) -> Function {
    const Layout layout(use, states);
    const Blocks blocks(use.inputs, layout.count);
    const int scalars = Rule::kScalars;
    return [=](const Run& run) {
      if (skipped(run, layout)) return;
      double numbers[3] = {};
      for (int i = 0; i < scalars; ++i) numbers[i] = read_number(*run.inputs[layout.scalar(i)]);
      std::vector<double> counts = count_steps(run, layout);
      std::vector<Rule> rules;
      for (size_t i = 0; i < std::max<size_t>(1, counts.size()); ++i)
        rules.emplace_back(run.use, counts.empty() ? 0.0 : counts[i], numbers);
      blocks.each([&](const Block& block, size_t) {
        const MgeTensor *ins[2 + states], *outs[1 + states];
        for (int k = 0; k < 1 + states; ++k) {
          ins[k] = run.inputs[block.tensor + (k ? k + 1 : 0) * layout.count];
          outs[k] = run.outputs[block.tensor + k * layout.count];
        }
        ins[1 + states] = run.inputs[block.tensor + layout.count];
        const Rule& rule = rules[rules.size() > 1 ? static_cast<size_t>(block.tensor) : 0];
        if (is_of<double>(*ins[0]))
          update_block<double>(ins, outs, block.begin, block.end, rule.template at<double>());
        else
          update_block<float>(ins, outs, block.begin, block.end, rule.template at<float>());
      });
    };
  };
  for_types<float, double, float16, bfloat16>([&](auto tag) {
    kernels.prepared<typename decltype(tag)::type>(op, make).unless(refusal).inplace_of(pairs_of(states));
  });
}

template <bool momentum>
struct Sgd {
  static constexpr int kScalars = momentum ? 3 : 2;
  double lr, decay, share;
  bool nesterov;
  Sgd(const Use& use, double, const double* s) : lr(s[0]), decay(s[1]), share(s[2]), nesterov(use.flag("nesterov")) {}

  template <class T>
  auto at() const {
    return [lr = T(lr), decay = T(decay), share = T(share), nesterov = nesterov](auto* v, auto) {
      auto g = decayed(v[1 + momentum], v[0], decay);
      if constexpr (momentum) {
        v[1] = v[1] * share + g;
        g = nesterov ? v[1] * share + g : v[1];
      }
      v[0] -= g * lr;
    };
  }
};

template <bool decoupled>
struct Adam {
  static constexpr int kScalars = 2;
  double lr, decay, beta1, beta2, eps, rate, scale;
  Adam(const Use& use, double t, const double* s)
      : lr(s[0]), decay(s[1]), beta1(use.number("beta1", 0)), beta2(use.number("beta2", 0)), eps(use.number("eps", 0)) {
    rate = t ? lr / bias(beta1, t) : std::numeric_limits<double>::quiet_NaN();
    scale = t ? 1 / bias(beta2, t) : std::numeric_limits<double>::quiet_NaN();
  }

  template <class T>
  auto at() const {
    const T b1 = T(beta1), r1 = T(1 - beta1), b2 = T(beta2), r2 = T(1 - beta2), shrink = T(lr * decay);
    return [=, eps = T(eps), decay = T(decay), rate = T(rate), scale = T(scale)](auto* v, auto) {
      auto g = decoupled ? v[3] : decayed(v[3], v[0], decay);
      v[1] = v[1] * b1 + g * r1;
      v[2] = v[2] * b2 + g * g * r2;
      auto step = v[1] / (cpu::sqrt(v[2] * scale) + eps) * rate;
      if (decoupled && shrink != 0) step += v[0] * shrink;
      v[0] -= step;
    };
  }
};

struct Adagrad {
  static constexpr int kScalars = 2;
  double rate, decay, eps;
  Adagrad(const Use& use, double t, const double* s)
      : rate(s[0] / (1 + (t - 1) * use.number("lr_decay", 0))), decay(s[1]), eps(use.number("eps", 0)) {}

  template <class T>
  auto at() const {
    return [rate = T(rate), decay = T(decay), eps = T(eps)](auto* v, auto) {
      auto g = decayed(v[2], v[0], decay);
      v[1] += g * g;
      v[0] -= g / cpu::sqrt(v[1] + eps) * rate;
    };
  }
};

struct Adadelta {
  static constexpr int kScalars = 2;
  double lr, decay, rho, eps;
  Adadelta(const Use& use, double, const double* s)
      : lr(s[0]), decay(s[1]), rho(use.number("rho", 0)), eps(use.number("eps", 0)) {}

  template <class T>
  auto at() const {
    return [lr = T(lr), decay = T(decay), rho = T(rho), rest = T(1 - rho), eps = T(eps)](auto* v, auto) {
      auto g = decayed(v[3], v[0], decay);
      v[1] = v[1] * rho + g * g * rest;
      auto d = cpu::sqrt(v[2] + eps) / cpu::sqrt(v[1] + eps) * g;
      v[2] = v[2] * rho + d * d * rest;
      v[0] -= d * lr;
    };
  }
};

// LAMB needs the norms of all of a parameter before it moves it: two walks. All tensors are of one dtype.
template <class T>
Function lamb(const Use& use) {
  using L = Lane<T>;
  const Layout layout(use, 2);
  const Blocks blocks(use.inputs, layout.count);
  const double beta1 = use.number("beta1", 0), beta2 = use.number("beta2", 0);
  const T eps = T(use.number("eps", 0));
  const bool corrects = use.flag("bias_correction"), always = use.flag("always_adapt");
  return [=](const Run& run) {
    if (skipped(run, layout)) return;
    const double lr = read_number(*run.inputs[layout.scalar(0)]), decay = read_number(*run.inputs[layout.scalar(1)]);
    const std::vector<double> counts = count_steps(run, layout);
    const int64_t n = layout.count;
    std::vector<T> sums(2 * blocks.size());
    const auto direction = [=, &counts](const Block& block) {
      const double t = counts[counts.size() > 1 ? static_cast<size_t>(block.tensor) : 0];
      const T scale1 = corrects ? T(1 / bias(beta1, t)) : T(1), scale2 = corrects ? T(1 / bias(beta2, t)) : T(1);
      return [=](auto param, auto m, auto v) { return m * scale1 / (cpu::sqrt(v * scale2) + eps) + param * T(decay); };
    };
    blocks.each([&](const Block& block, size_t number) {
      const int64_t i = block.tensor;
      const MgeTensor* ins[] = {run.inputs[i + 2 * n], run.inputs[i + 3 * n], run.inputs[i], run.inputs[i + n]};
      const MgeTensor* outs[] = {run.outputs[i + n], run.outputs[i + 2 * n]};
      typename L::V p_squares = {}, d_squares = {};
      update_block<T>(ins, outs, block.begin, block.end, [&, toward = direction(block)](auto* v, auto m) {
        v[0] = v[0] * T(beta1) + v[3] * T(1 - beta1);
        v[1] = v[1] * T(beta2) + v[3] * v[3] * T(1 - beta2);
        auto d = L::first(toward(v[2], v[0], v[1]), m);
        p_squares += v[2] * v[2], d_squares += d * d;
      });
      sums[2 * number] = L::total(p_squares), sums[2 * number + 1] = L::total(d_squares);
    });
    std::vector<T> norms(2 * static_cast<size_t>(n));
    for (size_t b = 0; b < blocks.size(); ++b)
      for (size_t k = 0; k < 2; ++k) norms[2 * static_cast<size_t>(blocks[b].tensor) + k] += sums[2 * b + k];
    blocks.each([&](const Block& block, size_t) {
      const int64_t i = block.tensor;
      const T p_norm = std::sqrt(norms[2 * i]), d_norm = std::sqrt(norms[2 * i + 1]);
      const T ratio = (always || decay > 0) && p_norm > 0 && d_norm > 0 ? p_norm / d_norm : T(1), step = ratio * T(lr);
      const MgeTensor *ins[] = {run.inputs[i], run.outputs[i + n], run.outputs[i + 2 * n]}, *outs[] = {run.outputs[i]};
      update_block<T>(ins, outs, block.begin, block.end, [&, toward = direction(block)](auto* v, auto) {
        v[0] -= toward(v[0], v[1], v[2]) * step;
      });
    });
  };
}

template <class T>
std::string several_dtypes(const Use& use) {
  for (int64_t i = 0; i < 4 * use.integer("count", 1); ++i)
    if (!(use.inputs[static_cast<size_t>(i)].dtype == dtype_of<T>())) return "only parameters and state of one dtype";
  return "";
}

// Calls f(Tag<T>(), elements, n) for the parts of a block, as float32 or float64.
template <class F>
void over_parts(const MgeTensor& x, const Block& block, F&& f) {
  if (is_of<double>(x)) return f(static_cast<const double*>(x.data) + block.begin, block.end - block.begin);
  if (is_of<float>(x)) return f(static_cast<const float*>(x.data) + block.begin, block.end - block.begin);
  float space[kPart];
  for (int64_t from = block.begin; from < block.end; from += kPart) {
    const int64_t n = std::min(kPart, block.end - from);
    f(read_part<float>(x, from, n, space), n);
  }
}

Function global_norm(const Use& use) {
  const Blocks blocks(use.inputs, static_cast<int64_t>(use.inputs.size()));
  const double order = use.number("ord", 2);
  const bool is_max = std::isinf(order);
  return [=](const Run& run) {
    std::vector<double> parts(blocks.size());
    blocks.each([&](const Block& block, size_t number) {
      double total = 0;
      over_parts(*run.inputs[block.tensor], block, [&](auto* x, int64_t n) {
        using T = std::decay_t<decltype(*x)>;
        if (is_max) {
          for (int64_t i = 0; i < n; ++i) total = Largest::join<double>(total, std::abs(x[i]));
        } else if (order == 2) {
          total += static_cast<double>(sum_over<T>(n, [=](int64_t i, auto m) {
            auto v = Lane<T>::get(x + i, m);
            return v * v;
          }));
        } else {
          for (int64_t i = 0; i < n; ++i) total += std::pow(std::abs(x[i]), T(order));
        }
      });
      parts[number] = total;
    });
    double total = 0;
    for (double part : parts) total = is_max ? Largest::join(total, part) : total + part;
    if (!is_max) total = order == 2 ? std::sqrt(total) : std::pow(total, 1 / order);
    write_number(*run.outputs[0], total);
  };
}

Function all_finite(const Use& use) {
  const Blocks blocks(use.inputs, static_cast<int64_t>(use.inputs.size()));
  return [=](const Run& run) {
    std::vector<char> good(blocks.size());
    blocks.each([&](const Block& block, size_t number) {
      bool finite = true;
      over_parts(*run.inputs[block.tensor], block, [&](auto* x, int64_t n) {
        using T = std::decay_t<decltype(*x)>;
        const T odd = sum_over<T>(n, [=](int64_t i, auto m) { return Lane<T>::get(x + i, m) * T(0); });
        finite &= odd == 0;  // infinity and NaN, times 0, are NaN
      });
      good[number] = finite;
    });
    *run.out<bool>(0) = std::all_of(good.begin(), good.end(), [](char g) { return g != 0; });
  };
}

Function scale_all(const Use& use) {
  const int64_t count = static_cast<int64_t>(use.outputs.size());
  const Blocks blocks(use.inputs, count);
  return [=](const Run& run) {
    const double factor = read_number(*run.inputs[count]);
    blocks.each([&](const Block& block, size_t) {
      const MgeTensor *ins[] = {run.inputs[block.tensor]}, *outs[] = {run.outputs[block.tensor]};
      if (is_of<double>(*ins[0]))
        update_block<double>(ins, outs, block.begin, block.end, [=](auto* v, auto) { v[0] *= factor; });
      else
        update_block<float>(ins, outs, block.begin, block.end,
                            [f = static_cast<float>(factor)](auto* v, auto) { v[0] *= f; });
    });
  };
}

}  // namespace

void add_update(Kernels& kernels) {
  for_types<float, double, float16, bfloat16>([&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels.prepared<T>("global_norm", global_norm);
    kernels.prepared<T>("all_finite", all_finite);
    kernels.prepared<T>("scale_all", scale_all).inplace_of([](const Use& use) {
      std::vector<MgeInplacePair> pairs;
      for (uint32_t i = 0; i < use.outputs.size(); ++i) pairs.push_back({i, i});
      return pairs;
    });
  });
  const auto momentum = [](const Use& use) { return use.flag("use_momentum"); };
  add_update<1, Sgd<true>>(kernels, "sgd_update", [=](const Use& use) { return momentum(use) ? "" : "no momentum"; });
  add_update<0, Sgd<false>>(kernels, "sgd_update", [=](const Use& use) { return momentum(use) ? "momentum" : ""; });
  add_update<2, Adam<false>>(kernels, "adam_update");
  add_update<2, Adam<true>>(kernels, "adamw_update");
  add_update<1, Adagrad>(kernels, "adagrad_update");
  add_update<2, Adadelta>(kernels, "adadelta_update");
  for_types<float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels.prepared<T>("lamb_update", lamb<T>).unless(several_dtypes<T>).inplace_of(pairs_of(2));
  });
}
