// Dynamic tensor rematerialisation (Kirisame et al. 2021, https://arxiv.org/abs/2006.09616), carried out before the run:
// steps come in order, and where memory is short, what is cheap, large and has not been used for long goes first.
// It looks at nothing that comes later but how often a value is still read, so it takes time in proportion to the graph.

#include <cmath>

#include "simulator.hpp"

using sublinear::Problem;

namespace {

struct Settings {
  int64_t threshold;    // bytes in use from which values go
  int64_t least_bytes;  // smaller values never go
  double memory_factor, time_factor;
  int32_t samples_sqrt;  // look at a sample of the values, as many as the square root
};

class Online {
 public:
  Online(const Problem& p, const Settings& settings)
      : p_(p), s_(settings), maker_(p.value_count, -1), reads_(p.value_count, 0), locks_(p.value_count, 0),
        is_there_(p.value_count, 0), used_(p.value_count, 0), cost_(p.value_count, 0) {
    for (int32_t n = 0; n < p.node_count; ++n) {
      for (int32_t i = p.output_start[n]; i < p.output_start[n + 1]; ++i) maker_[p.outputs[i]] = n;
      for (int32_t i = p.input_start[n]; i < p.input_start[n + 1]; ++i) ++reads_[p.inputs[i]];
    }
  }

  const std::vector<int32_t>& run() {
    for (int32_t n = 0; n < p_.node_count; ++n) {
      compute(n);
      for (int32_t i = p_.input_start[n]; i < p_.input_start[n + 1]; ++i)
        if (--reads_[p_.inputs[i]] == 0) drop_if_dead(p_.inputs[i]);
    }
    return runs_;
  }

 private:
  void compute(int32_t node) {
    const int32_t *begin = p_.inputs + p_.input_start[node], *end = p_.inputs + p_.input_start[node + 1];
    for (auto v = begin; v != end; ++v) ++locks_[*v];
    for (auto v = begin; v != end; ++v)
      if (!is_there_[*v]) compute(maker_[*v]);
    int64_t needed = p_.scratch[node];
    for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i)
      if (!is_there_[p_.outputs[i]]) needed += p_.nbytes[p_.outputs[i]];
    while (live_ + needed > s_.threshold && evict()) {
    }
    clock_ += p_.time_ns[node] + 1;
    runs_.push_back(node);
    for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) {
      const int32_t v = p_.outputs[i];
      if (!is_there_[v]) {
        live_ += p_.nbytes[v], is_there_[v] = 1;
        if (can_go(v)) pool_.push_back(v);
      }
      used_[v] = clock_;
    }
    for (auto v = begin; v != end; ++v) used_[*v] = clock_, --locks_[*v];
  }

  bool can_go(int32_t v) const {
    return p_.may_repeat[maker_[v]] && !p_.is_result[v] && p_.nbytes[v] >= s_.least_bytes;
  }

  void remove(size_t place) {
    const int32_t v = pool_[place];
    is_there_[v] = 0, live_ -= p_.nbytes[v];
    pool_[place] = pool_.back();
    pool_.pop_back();
  }

  void drop_if_dead(int32_t v) {
    if (!is_there_[v] || p_.is_result[v]) return;
    auto place = std::find(pool_.begin(), pool_.end(), v);
    if (place != pool_.end()) return remove(static_cast<size_t>(place - pool_.begin()));
    is_there_[v] = 0, live_ -= p_.nbytes[v];
  }

  // Time to compute a value again: its own, and that of what it is computed from and is not there.
  double cost(int32_t v) const {
    const int32_t node = maker_[v];
    double sum = p_.time_ns[node];
    for (int32_t i = p_.input_start[node]; i < p_.input_start[node + 1]; ++i)
      if (!is_there_[p_.inputs[i]]) sum += cost_[p_.inputs[i]];
    return sum;
  }

  bool evict() {
    size_t stride = 1;
    if (s_.samples_sqrt) stride = std::max<size_t>(1, static_cast<size_t>(std::sqrt(static_cast<double>(pool_.size()))));
    size_t best = pool_.size();
    double lowest = 0;
    for (size_t first = 0; first < stride && best == pool_.size(); ++first)
      for (size_t i = first; i < pool_.size(); i += stride) {
        const int32_t v = pool_[i];
        if (locks_[v]) continue;
        const double stale = clock_ - used_[v] + 1, nbytes = static_cast<double>(p_.nbytes[v]);
        const double h = std::pow(cost(v) + 1, s_.time_factor) / (std::pow(nbytes, s_.memory_factor) * stale);
        if (best == pool_.size() || h < lowest) best = i, lowest = h;
      }
    if (best == pool_.size()) return false;
    cost_[pool_[best]] = cost(pool_[best]);
    remove(best);
    return true;
  }

  const Problem& p_;
  const Settings s_;
  std::vector<int32_t> maker_, reads_, locks_;
  std::vector<uint8_t> is_there_;
  std::vector<double> used_, cost_;  // by value: when it was used last; its cost when it went
  std::vector<int32_t> pool_, runs_;  // what may go
  double clock_ = 0;
  int64_t live_ = 0;
};

}  // namespace

// Fills `runs`, which has room for `capacity`, with the nodes that run, in order; returns how many there are.
extern "C" __attribute__((visibility("default"))) int32_t mge_sublinear_dtr(
    const Problem* problem, int64_t threshold, int64_t least_bytes, double memory_factor, double time_factor,
    int32_t samples_sqrt, int32_t* runs, int32_t capacity) {
  Online online(*problem, {threshold, least_bytes, memory_factor, time_factor, samples_sqrt});
  const auto& order = online.run();
  std::copy_n(order.begin(), std::min<size_t>(order.size(), static_cast<size_t>(capacity)), runs);
  return static_cast<int32_t>(order.size());
}
