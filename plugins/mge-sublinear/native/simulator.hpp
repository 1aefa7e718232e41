// The simulator: what a plan takes in time and bytes, from which values it keeps and which it computes again.
//
// A plan gives each value a hold. KEEP: it stays from its first computation to whatever reads it last. Otherwise it is
// given up where some of the gaps between its uses begin, which are its places, and computed again by the first step that
// needs it. A value that was computed again at step t stays if its next use is at most `after` steps behind t: 0 computes
// it for each step that needs it, RETAIN keeps it from then on, and between them are the sweeps of checkpointing in levels.
//
// The bytes follow the rules of the core's plans: a value lives from its run to the last reader before its next run;
// an output takes the bytes of an input that dies there, where the op allows it; results have memory of their own.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace sublinear {

constexpr int32_t kKeep = -1;
constexpr int32_t kPlaceShift = 23;
constexpr int32_t kRetain = (1 << kPlaceShift) - 1;

// Places, bits: the longest gap, or behind the last use where there is none; behind the last use; other gaps, the longest
// first; and kServed, each step at which something is computed again from the value. A hold has `after` below, and the
// places above; none stands for the longest gap. A gap has a step in between, or an output in the memory of the value.
constexpr int32_t kLongest = 1, kBehind = 2, kMostPlaces = 7, kServed = 1 << kMostPlaces;

inline int32_t after(int32_t hold) { return hold & kRetain; }
inline int32_t places(int32_t hold) { return hold >> kPlaceShift ? hold >> kPlaceShift : kLongest; }
inline int32_t hold_of(int32_t places, int32_t after) { return places << kPlaceShift | after; }

// What the planner is asked for. Arrays belong to the caller and outlive the simulator.
struct Problem {
  int32_t node_count;
  int32_t value_count;
  const int32_t* input_start;   // node_count + 1: where the inputs of each node begin in `inputs`
  const int32_t* inputs;        // values; what is there all the time is left out
  const int32_t* output_start;  // node_count + 1
  const int32_t* outputs;       // values; each is made by one node
  const int32_t* pair_start;    // node_count + 1
  const int32_t* pairs;         // (input, output) values, two a pair; input -1: memory that is not the plan's
  const double* time_ns;        // of each node
  const int64_t* nbytes;        // of each value, aligned
  const uint8_t* is_result;     // of each value: it is there at the end, beside the arena
  const uint8_t* may_repeat;    // of each node
  const int32_t* role;          // of each value: equal numbers do the same job in repeated blocks
  const int64_t* scratch;       // bytes of each node, while it runs
};

struct Figures {
  double time_ns = 0;
  int64_t peak_bytes = 0;
  int32_t peak_run = 0;  // the run at the peak
};

class Simulator {
 public:
  explicit Simulator(const Problem& problem);

  // Runs `hold` (one for each value) and returns what it takes.
  Figures run(const std::vector<int32_t>& hold) {
    Figures figures;
    run(hold, std::numeric_limits<double>::infinity(), figures);
    return figures;
  }

  // The same; gives up and returns false where it takes longer than `most_ns`.
  bool run(const std::vector<int32_t>& hold, double most_ns, Figures& figures);

  // The nodes that the last plan runs, in order.
  const std::vector<int32_t>& runs() const { return runs_; }

  // The holds with which nothing is computed again.
  const std::vector<int32_t>& kept() const { return kept_; }

  // Values that may be given up, as they are made; where the longest gap between uses of a value begins and ends. One
  // without a gap is given up behind its last use; to keep it serves those that are computed again from it.
  const std::vector<int32_t>& candidates() const { return candidates_; }
  int32_t gap_start(int32_t value) const { return gap_start_[value]; }
  int32_t gap_end(int32_t value) const { return gap_end_[value]; }
  bool has_gap(int32_t value) const { return gap_end_[value] >= 0; }
  int32_t maker(int32_t value) const { return maker_[value]; }
  int32_t place_count(int32_t value) const { return place_count_[value]; }

  // The values that are live at a run of the last plan.
  std::vector<int32_t> live_at(int32_t run);

 private:
  bool compute(int32_t node);
  bool emit(const std::vector<int32_t>& hold);
  bool stays(int32_t value, int32_t step, int32_t hold) const;
  template <class Look>
  void look_back(Look look);

  struct Place {
    int32_t value, place;
  };
  struct Output {
    int32_t value, source_start, source_end;  // inputs over which it may be written
  };
  const Problem& p_;
  double time_ = 0, most_ns_ = 0;
  int64_t results_ = 0;
  std::vector<int32_t> maker_, gap_start_, gap_end_, candidates_, kept_, place_count_;
  std::vector<std::vector<int32_t>> uses_;
  std::vector<Place> places_;              // by step
  std::vector<int32_t> place_start_, need_start_, need_, sources_;
  std::vector<Output> outputs_;            // like the problem's
  std::vector<int64_t> nbytes_;            // 0 where the memory is not the plan's
  std::vector<uint8_t> present_;
  std::vector<int32_t> runs_, again_;
  std::vector<int64_t> weight_;            // of live values, 0 where the memory is a result's; -1: not live
};

inline Simulator::Simulator(const Problem& p)
    : p_(p), maker_(p.value_count, -1), gap_start_(p.value_count), gap_end_(p.value_count),
      kept_(p.value_count, kKeep), place_count_(p.value_count, 0), uses_(p.value_count),
      nbytes_(p.nbytes, p.nbytes + p.value_count), present_(p.value_count), weight_(p.value_count) {
  for (int32_t n = 0; n < p.node_count; ++n) {
    for (int32_t i = p.output_start[n]; i < p.output_start[n + 1]; ++i) maker_[p.outputs[i]] = n;
    for (int32_t i = p.input_start[n]; i < p.input_start[n + 1]; ++i) {
      auto& uses = uses_[p.inputs[i]];
      if (uses.empty() || uses.back() != n) uses.push_back(n);
    }
    for (int32_t k = 2 * p.pair_start[n]; k < 2 * p.pair_start[n + 1]; k += 2)
      if (p.pairs[k] < 0) nbytes_[p.pairs[k + 1]] = 0;
  }
  std::vector<std::vector<Place>> by_step(p.node_count);
  std::vector<uint8_t> is_candidate(p.value_count, 0);
  for (int32_t v = 0; v < p.value_count; ++v) {
    if (p.is_result[v]) results_ += nbytes_[v];
    if (maker_[v] < 0 || p.is_result[v] || !p.may_repeat[maker_[v]] || p.nbytes[v] == 0 || uses_[v].empty()) continue;
    std::vector<std::pair<int32_t, int32_t>> gaps;  // less their length, start
    int32_t before = maker_[v];
    const auto gives_memory = [&](int32_t n) {
      for (int32_t k = 2 * p.pair_start[n]; k < 2 * p.pair_start[n + 1]; k += 2)
        if (p.pairs[k] == v) return true;
      return false;
    };
    for (int32_t use : uses_[v]) {
      if (use - before > 1 || gives_memory(before)) gaps.push_back({before - use, before});
      before = use;
    }
    std::sort(gaps.begin(), gaps.end());
    gaps.insert(gaps.begin() + (!gaps.empty() && gaps[0].first < -1), {0, before});
    gap_start_[v] = gaps[0].second, gap_end_[v] = gaps[0].first < -1 ? gaps[0].second - gaps[0].first : -1;
    if (!has_gap(v)) kept_[v] = 0;
    candidates_.push_back(v);
    is_candidate[v] = 1;
    place_count_[v] = static_cast<int32_t>(std::min<size_t>(gaps.size(), kMostPlaces));
    for (int32_t i = 0; i < place_count_[v]; ++i) by_step[gaps[i].second].push_back({v, 1 << i});
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [&](int32_t a, int32_t b) { return maker_[a] < maker_[b]; });
  for (int32_t n = 0; n < p.node_count; ++n) {
    place_start_.push_back(static_cast<int32_t>(places_.size()));
    places_.insert(places_.end(), by_step[n].begin(), by_step[n].end());
    need_start_.push_back(static_cast<int32_t>(need_.size()));
    const auto first = p.inputs + p.input_start[n], last = p.inputs + p.input_start[n + 1];
    for (auto v = first; v != last; ++v)
      if (is_candidate[*v] && std::find(first, v, *v) == v) need_.push_back(*v);
    for (int32_t i = p.output_start[n]; i < p.output_start[n + 1]; ++i) {
      const int32_t v = p.outputs[i], from = static_cast<int32_t>(sources_.size());
      for (int32_t k = 2 * p.pair_start[n]; k < 2 * p.pair_start[n + 1]; k += 2) {
        const int32_t source = p.pairs[k];
        if (p.pairs[k + 1] != v || source < 0 || nbytes_[v] == 0) continue;
        if (nbytes_[source] == nbytes_[v] && std::count(first, last, source) == 1) sources_.push_back(source);
      }
      outputs_.push_back({v, from, static_cast<int32_t>(sources_.size())});
    }
  }
  place_start_.push_back(static_cast<int32_t>(places_.size()));
  need_start_.push_back(static_cast<int32_t>(need_.size()));
}

inline bool Simulator::stays(int32_t value, int32_t step, int32_t hold) const {
  if (hold == kKeep || after(hold) == kRetain) return true;
  if (after(hold) == 0) return false;
  const auto& uses = uses_[value];
  auto next = std::upper_bound(uses.begin(), uses.end(), step);
  return next != uses.end() && *next - step <= after(hold);
}

inline bool Simulator::compute(int32_t node) {
  for (int32_t i = need_start_[node]; i < need_start_[node + 1]; ++i) {
    const int32_t v = need_[i];
    if (!present_[v]) {
      if (!compute(maker_[v])) return false;
      again_.push_back(maker_[v]);
    }
  }
  runs_.push_back(node);
  time_ += p_.time_ns[node];
  for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) present_[p_.outputs[i]] = 1;
  return time_ <= most_ns_;
}

inline bool Simulator::emit(const std::vector<int32_t>& hold) {
  runs_.clear();
  time_ = 0;
  std::fill(present_.begin(), present_.end(), 0);
  for (int32_t t = 0; t < p_.node_count; ++t) {
    again_.clear();
    if (!compute(t)) return false;
    for (int32_t node : again_)
      for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) {
        int32_t v = p_.outputs[i];
        present_[v] = stays(v, t, hold[v]);
      }
    for (int32_t node : again_)
      for (int32_t i = need_start_[node]; i < need_start_[node + 1]; ++i) {
        const int32_t h = hold[need_[i]];
        if (h != kKeep && (h >> kPlaceShift & kServed)) present_[need_[i]] = 0;
      }
    for (int32_t i = place_start_[t]; i < place_start_[t + 1]; ++i) {
      const int32_t h = hold[places_[i].value];
      if (h != kKeep && (places(h) & places_[i].place)) present_[places_[i].value] = 0;
    }
  }
  return true;
}

// From the last run to the first, until it returns false: `look(run, live bytes)`. weight_ has the values that are live.
template <class Look>
void Simulator::look_back(Look look) {
  std::fill(weight_.begin(), weight_.end(), -1);
  for (int32_t v = 0; v < p_.value_count; ++v)
    if (p_.is_result[v]) weight_[v] = 0;
  int64_t live = results_;
  for (int32_t r = static_cast<int32_t>(runs_.size()) - 1; r >= 0; --r) {
    const int32_t node = runs_[r];
    int64_t begun = 0, only_here = 0;
    for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) {
      const Output& o = outputs_[i];
      int64_t weight = weight_[o.value];
      if (weight < 0) weight = nbytes_[o.value], only_here += weight;
      else begun += weight;
      for (int32_t k = o.source_start; k < o.source_end; ++k)
        if (weight_[sources_[k]] < 0) {  // it dies here: one memory for both
          weight_[sources_[k]] = weight;
          only_here -= weight, live += weight;
          break;
        }
    }
    for (int32_t i = p_.input_start[node]; i < p_.input_start[node + 1]; ++i)
      if (weight_[p_.inputs[i]] < 0) weight_[p_.inputs[i]] = nbytes_[p_.inputs[i]], live += nbytes_[p_.inputs[i]];
    if (!look(r, live + only_here + p_.scratch[node])) return;
    live -= begun;
    for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) weight_[p_.outputs[i]] = -1;
  }
}

inline bool Simulator::run(const std::vector<int32_t>& hold, double most_ns, Figures& figures) {
  most_ns_ = most_ns;
  if (!emit(hold)) return false;
  figures = {time_, 0, 0};
  look_back([&](int32_t r, int64_t live) {
    if (live >= figures.peak_bytes) figures.peak_bytes = live, figures.peak_run = r;
    return true;
  });
  return true;
}

inline std::vector<int32_t> Simulator::live_at(int32_t run) {
  std::vector<int32_t> live;
  look_back([&](int32_t r, int64_t) { return r != run; });
  for (int32_t v = 0; v < p_.value_count; ++v)
    if (weight_[v] >= 0 && !p_.is_result[v]) live.push_back(v);
  return live;
}

}  // namespace sublinear
