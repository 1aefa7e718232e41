// The gates of LSTM and GRU cells, and their gradients.
#include "mge/cpu/halves.hpp"
#include "mge/cpu/lane.hpp"
#include "mge/cpu/reduce.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

// 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2
template <class V, class T>
MGE_INLINE V sigmoid_of(V x, T half) {
  return cpu::tanh(x * half) * half + half;
}

// Calls f(row, i, m) for the states (rows, h), by vectors of a row.
template <class T, class F>
void over_states(const Type& type, F&& f) {
  const int64_t h = type.shape.back(), rows = h ? type.size() / h : 0;
  parallel_for(rows, std::max<int64_t>(1, kPiece / 16 / std::max<int64_t>(1, h)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) walk<T>(h, [&](int64_t i, auto m) { f(r, i, m); });
  });
}

template <class T>
void lstm_gates(const Run& run) {
  using L = Lane<T>;
  const int64_t h = run.use.inputs[1].shape.back();
  const T *gates = run.in<T>(0), *c = run.in<T>(1), half = T(0.5);
  T *h2 = run.out<T>(0), *c2 = run.out<T>(1);
  over_states<T>(run.use.inputs[1], [=](int64_t r, int64_t i, auto m) {
    const T* g = gates + 4 * r * h + i;
    auto in = sigmoid_of(L::get(g, m), half), forget = sigmoid_of(L::get(g + h, m), half);
    auto cell = cpu::tanh(L::get(g + 2 * h, m)), out = sigmoid_of(L::get(g + 3 * h, m), half);
    auto next = forget * L::get(c + r * h + i, m) + in * cell;
    L::put(c2 + r * h + i, next, m);
    L::put(h2 + r * h + i, out * cpu::tanh(next), m);
  });
}

template <class T>
void lstm_gates_grad(const Run& run) {
  using L = Lane<T>;
  const int64_t h = run.use.inputs[3].shape.back();
  const T *dh = run.in<T>(0), *dc = run.in<T>(1), *gates = run.in<T>(2), *c = run.in<T>(3), half = T(0.5), one = T(1);
  T *dgates = run.out<T>(0), *dc_old = run.out<T>(1);
  over_states<T>(run.use.inputs[3], [=](int64_t r, int64_t i, auto m) {
    const T* g = gates + 4 * r * h + i;
    T* to = dgates + 4 * r * h + i;
    const int64_t at = r * h + i;
    auto in = sigmoid_of(L::get(g, m), half), forget = sigmoid_of(L::get(g + h, m), half);
    auto cell = cpu::tanh(L::get(g + 2 * h, m)), out = sigmoid_of(L::get(g + 3 * h, m), half);
    auto old = L::get(c + at, m), given = L::get(dh + at, m), t = cpu::tanh(forget * old + in * cell);
    auto d = L::get(dc + at, m) + given * out * (one - t * t);
    L::put(to, d * cell * (in * (one - in)), m);
    L::put(to + h, d * old * (forget * (one - forget)), m);
    L::put(to + 2 * h, d * in * (one - cell * cell), m);
    L::put(to + 3 * h, given * t * (out * (one - out)), m);
    L::put(dc_old + at, d * forget, m);
  });
}

template <class T>
void gru_gates(const Run& run) {
  using L = Lane<T>;
  const int64_t h = run.use.inputs[2].shape.back();
  const T *x = run.in<T>(0), *y = run.in<T>(1), *state = run.in<T>(2), half = T(0.5);
  T* to = run.out<T>(0);
  over_states<T>(run.use.inputs[2], [=](int64_t r, int64_t i, auto m) {
    const T *a = x + 3 * r * h + i, *b = y + 3 * r * h + i;
    auto reset = sigmoid_of(L::get(a, m) + L::get(b, m), half);
    auto update = sigmoid_of(L::get(a + h, m) + L::get(b + h, m), half);
    auto fresh = cpu::tanh(L::get(a + 2 * h, m) + reset * L::get(b + 2 * h, m));
    L::put(to + r * h + i, fresh + update * (L::get(state + r * h + i, m) - fresh), m);
  });
}

template <class T>
void gru_gates_grad(const Run& run) {
  using L = Lane<T>;
  const int64_t h = run.use.inputs[3].shape.back();
  const T *dy = run.in<T>(0), *x = run.in<T>(1), *y = run.in<T>(2), *state = run.in<T>(3), half = T(0.5), one = T(1);
  T *dx = run.out<T>(0), *dhidden = run.out<T>(1), *dstate = run.out<T>(2);
  over_states<T>(run.use.inputs[3], [=](int64_t r, int64_t i, auto m) {
    const T *a = x + 3 * r * h + i, *b = y + 3 * r * h + i;
    const int64_t at = 3 * r * h + i;
    auto reset = sigmoid_of(L::get(a, m) + L::get(b, m), half);
    auto update = sigmoid_of(L::get(a + h, m) + L::get(b + h, m), half), hidden = L::get(b + 2 * h, m);
    auto fresh = cpu::tanh(L::get(a + 2 * h, m) + reset * hidden), given = L::get(dy + r * h + i, m);
    auto dn = given * (one - update) * (one - fresh * fresh);
    auto dr = dn * hidden * (reset * (one - reset));
    auto dz = given * (L::get(state + r * h + i, m) - fresh) * (update * (one - update));
    L::put(dx + at, dr, m), L::put(dx + at + h, dz, m), L::put(dx + at + 2 * h, dn, m);
    L::put(dhidden + at, dr, m), L::put(dhidden + at + h, dz, m), L::put(dhidden + at + 2 * h, dn * reset, m);
    L::put(dstate + r * h + i, given * update, m);
  });
}

}  // namespace

void add_gates(Kernels& kernels) {
  for_types<float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    // All that lies at one place of all inputs is read before anything is written there.
    kernels.add<T>("lstm_gates", lstm_gates<T>).inplace(1, 1);
    kernels.add<T>("lstm_gates_grad", lstm_gates_grad<T>).inplace(2, 0).inplace(1, 1).inplace(0, 1).inplace(3, 1);
    kernels.add<T>("gru_gates", gru_gates<T>).inplace(2);
    kernels.add<T>("gru_gates_grad", gru_gates_grad<T>).inplace(1, 0).inplace(2, 1).inplace(0, 2).inplace(3, 2);
  });
  also_halves(kernels, {"lstm_gates", "lstm_gates_grad", "gru_gates", "gru_gates_grad"});
}
