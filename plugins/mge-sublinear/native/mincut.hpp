// The cheap pass: which values to save between the forward and the backward phase, by a minimum cut.
//
// What the backward phase reads is either saved, which costs its bytes, or computed again, which costs the time of its
// maker and needs all that the maker reads, saved or computed again in its turn. At a price of time in bytes, the
// cheapest choice is a minimum cut: one vertex for each value (is it wanted?), one for each node (does it run again?).

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simulator.hpp"

namespace sublinear {

// Maximum flow by blocking flows (Dinitz 1970).
class Flow {
 public:
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 4;

  explicit Flow(int32_t vertices) : edges_of_(vertices), level_(vertices), next_(vertices) {}

  void add(int32_t from, int32_t to, int64_t capacity) {
    edges_of_[from].push_back(static_cast<int32_t>(edges_.size()));
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(static_cast<int32_t>(edges_.size()));
    edges_.push_back({from, 0});
  }

  // Pushes all that goes from `source` to `sink`; then `is_before` tells on which side of the least cut a vertex is.
  int64_t push(int32_t source, int32_t sink) {
    int64_t total = 0;
    while (find_levels(source), level_[sink] >= 0) {
      std::fill(next_.begin(), next_.end(), 0);
      while (int64_t pushed = advance(source, sink, kEndless)) total += pushed;
    }
    return total;
  }

  bool is_before(int32_t vertex) const { return level_[vertex] >= 0; }

 private:
  struct Edge {
    int32_t to;
    int64_t left;
  };

  void find_levels(int32_t source) {
    std::fill(level_.begin(), level_.end(), -1);
    std::vector<int32_t> queue{source};
    level_[source] = 0;
    for (size_t i = 0; i < queue.size(); ++i)
      for (int32_t e : edges_of_[queue[i]])
        if (edges_[e].left > 0 && level_[edges_[e].to] < 0) {
          level_[edges_[e].to] = level_[queue[i]] + 1;
          queue.push_back(edges_[e].to);
        }
  }

  int64_t advance(int32_t at, int32_t sink, int64_t most) {
    if (at == sink) return most;
    for (auto& i = next_[at]; i < edges_of_[at].size(); ++i) {
      const int32_t e = edges_of_[at][i];
      if (edges_[e].left <= 0 || level_[edges_[e].to] != level_[at] + 1) continue;
      if (int64_t pushed = advance(edges_[e].to, sink, std::min(most, edges_[e].left))) {
        edges_[e].left -= pushed;
        edges_[e ^ 1].left += pushed;
        return pushed;
      }
    }
    return 0;
  }

  std::vector<std::vector<int32_t>> edges_of_;  // edge 2i goes back as edge 2i + 1
  std::vector<Edge> edges_;
  std::vector<int32_t> level_;
  std::vector<size_t> next_;
};

// The holds with which nothing is computed again, but what no step behind `turn` reads goes after its last use: to keep
// it longer would serve those that are computed again from it.
inline std::vector<int32_t> settled(const Problem& p, const Simulator& s, int32_t turn) {
  std::vector<int32_t> hold = s.kept();
  for (int32_t v : s.candidates())
    if (s.has_gap(v)) hold[v] = hold_of(kBehind, 0);
  for (int32_t i = p.input_start[turn + 1]; i < p.input_start[p.node_count]; ++i)
    hold[p.inputs[i]] = s.kept()[p.inputs[i]];
  return hold;
}

// The holds that save least: bytes that stay from the forward phase (up to `turn`) to the backward phase, plus
// `bytes_per_ns` times what computing again takes.
inline std::vector<int32_t> least_saved(const Problem& p, const Simulator& s, int32_t turn, double bytes_per_ns) {
  const int32_t source = p.node_count + p.value_count, sink = source + 1;
  Flow flow(sink + 1);
  std::vector<uint8_t> may_go(p.value_count, 0);
  for (int32_t v : s.candidates()) may_go[v] = s.maker(v) <= turn;
  for (int32_t n = 0; n < p.node_count; ++n) {
    const bool is_early = n <= turn;
    bool may_run_again = false;
    for (int32_t i = p.output_start[n]; i < p.output_start[n + 1]; ++i) {
      if (!may_go[p.outputs[i]]) continue;
      flow.add(n, p.node_count + p.outputs[i], p.nbytes[p.outputs[i]]);
      may_run_again = true;
    }
    if (may_run_again) flow.add(source, n, static_cast<int64_t>(bytes_per_ns * p.time_ns[n]) + 1);
    for (int32_t i = p.input_start[n]; i < p.input_start[n + 1]; ++i) {
      if (!may_go[p.inputs[i]]) continue;
      if (!is_early) flow.add(p.node_count + p.inputs[i], sink, Flow::kEndless);
      else if (may_run_again) flow.add(p.node_count + p.inputs[i], n, Flow::kEndless);
    }
  }
  flow.push(source, sink);
  std::vector<int32_t> hold = settled(p, s, turn);
  for (int32_t v : s.candidates()) {
    if (!may_go[v] || flow.is_before(p.node_count + v)) continue;
    if (flow.is_before(s.maker(v))) hold[v] = kKeep;
    else if (s.gap_end(v) > turn) hold[v] = kRetain;
  }
  return hold;
}

// The same for prices of time from far above to far below what any value costs for its bytes.
inline std::vector<std::vector<int32_t>> cheap_passes(const Problem& p, const Simulator& s, int32_t turn, int32_t count) {
  double low = std::numeric_limits<double>::max(), high = 0;
  for (int32_t v : s.candidates()) {
    const double price = static_cast<double>(p.nbytes[v]) / (p.time_ns[s.maker(v)] + 1);
    low = std::min(low, price / 8), high = std::max(high, price);
  }
  std::vector<std::vector<int32_t>> found;
  for (int32_t i = 0; i < count && high > 0; ++i) {
    found.push_back(least_saved(p, s, turn, high * std::pow(low / high, i / std::max(1.0, count - 1.0))));
    if (found.size() > 1 && found.back() == found[found.size() - 2]) found.pop_back();
  }
  return found;
}

}  // namespace sublinear
