// Plans to start the search from, whatever the graph: checkpoints in one or two levels.
//
// A cut is a place in the forward phase; what it cuts through is a checkpoint. In one level (Chen et al. 2016,
// https://arxiv.org/abs/1604.06174), all else is computed again, segment by segment. In two levels, the outer
// checkpoints are kept, the inner ones are found again when the backward phase comes to their outer segment: the
// sweeps of Griewank and Walther 2000, https://doi.org/10.1145/347837.347846.

#pragma once

#include <algorithm>
#include <vector>

#include "simulator.hpp"

namespace sublinear {

class Seeds {
 public:
  // `turn`: the step at which everything that the backward phase reads is there.
  Seeds(const Problem& problem, const Simulator& simulator, int32_t turn)
      : p_(problem), s_(simulator), crossing_(problem.node_count + 1, 0), weight_(problem.node_count + 1, 0) {
    for (int32_t v : s_.candidates()) {
      if (s_.maker(v) > turn || s_.gap_start(v) > turn) continue;
      early_.push_back(v);
      crossing_[s_.maker(v)] += p_.nbytes[v];
      crossing_[s_.gap_start(v)] -= p_.nbytes[v];
      if (s_.gap_end(v) <= turn) continue;
      saved_.push_back(v);
      weight_[s_.maker(v)] += p_.nbytes[v];
    }
    for (int32_t t = 1; t <= p_.node_count; ++t) crossing_[t] += crossing_[t - 1], weight_[t] += weight_[t - 1];
  }

  // Checkpoints: `outer` segments, each of `inner` segments.
  std::vector<int32_t> checkpoints(int32_t outer, int32_t inner) const {
    std::vector<int32_t> hold = s_.kept();
    const std::vector<int32_t> fine = cuts(outer * inner);
    for (int32_t v : early_) {
      if (s_.has_gap(v)) hold[v] = window(fine, v, 1);
      for (size_t i = 0; i < fine.size(); ++i)
        if (s_.maker(v) <= fine[i] && fine[i] < s_.gap_start(v)) {
          const bool is_outer = (i + 1) % inner == 0;
          hold[v] = is_outer ? kKeep : std::max(hold[v], window(fine, v, inner));
          if (is_outer) break;
        }
    }
    return hold;
  }

 private:
  // Places that share the saved bytes out evenly, each moved to where it cuts through least.
  std::vector<int32_t> cuts(int32_t segments) const {
    std::vector<int32_t> found;
    const double total = static_cast<double>(weight_.back());
    for (int32_t i = 1; i < segments; ++i) {
      const auto place = [&](double share) {
        return static_cast<int32_t>(std::lower_bound(weight_.begin(), weight_.end(), static_cast<int64_t>(share * total)) -
                                    weight_.begin());
      };
      int32_t low = place((i - 0.35) / segments), high = std::max(low + 1, place((i + 0.35) / segments));
      high = std::min(high, p_.node_count);
      if (low >= high) continue;
      auto best = std::min_element(crossing_.begin() + low, crossing_.begin() + high);
      int32_t at = static_cast<int32_t>(best - crossing_.begin());
      if (found.empty() || at > found.back()) found.push_back(at);
    }
    return found;
  }

  // How many steps the backward phase takes for the segment, of `merged` segments each, in which a value is made.
  int32_t window(const std::vector<int32_t>& cuts, int32_t value, int32_t merged) const {
    const auto segment = [&](int32_t v) {
      return static_cast<int32_t>(std::lower_bound(cuts.begin(), cuts.end(), s_.maker(v)) - cuts.begin()) / merged;
    };
    const int32_t mine = segment(value);
    int32_t low = p_.node_count, high = 0;
    for (int32_t v : saved_)
      if (segment(v) == mine) low = std::min(low, s_.gap_end(v)), high = std::max(high, s_.gap_end(v));
    return std::max(1, high - low);
  }

  const Problem& p_;
  const Simulator& s_;
  std::vector<int64_t> crossing_, weight_;  // by step: bytes that a cut behind it cuts through; saved bytes up to it
  std::vector<int32_t> early_, saved_;  // made before the turn; of those, read behind it
};

}  // namespace sublinear
