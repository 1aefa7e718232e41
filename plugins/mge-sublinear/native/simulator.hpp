// The simulator: what a plan takes in time and bytes, from which values it keeps and which it computes again.
//
// A plan gives each value a hold. KEEP: it stays from its first computation to whatever reads it last. Otherwise it is given up
// where the longest gap between two of its uses begins, and computed again by the first step that needs it. A value
// that was computed again at step t stays if its next use is at most `hold` steps after t: 0 computes it for each
// step that needs it, RETAIN keeps it from then on, and between them are the sweeps of checkpointing in levels.
//
// The bytes follow the rules of the core's plans: a value lives from its run to the last reader before its next run;
// an output takes the bytes of an input that dies there, where the op allows it; results have memory of their own.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace sublinear {

constexpr int32_t kKeep = -1;
constexpr int32_t kRetain = std::numeric_limits<int32_t>::max();

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
  Figures run(const std::vector<int32_t>& hold);

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

  // The values that are live at a run of the last plan.
  std::vector<int32_t> live_at(int32_t run) const;

 private:
  void compute(int32_t node);
  void emit(const std::vector<int32_t>& hold);
  bool stays(int32_t value, int32_t step, int32_t hold) const;
  int64_t peak(int32_t* at);

  const Problem& p_;
  std::vector<int32_t> maker_, gap_start_, gap_end_, candidates_, kept_;
  std::vector<std::vector<int32_t>> uses_, given_up_;  // by value: steps; by step: values whose gap begins
  std::vector<uint8_t> present_;
  std::vector<int32_t> runs_, again_;
  // Instances: one for each output of each run. Storages: one or several instances, one after the other.
  struct Storage {
    int64_t nbytes;
    int32_t start, end;
  };
  static constexpr int32_t kNew = -1, kOutside = -2;
  int32_t over(int32_t node, int32_t output, int32_t r) const;
  std::vector<int32_t> current_, last_, storage_of_, results_;
  std::vector<Storage> storages_;
  std::vector<int64_t> change_;
};

inline Simulator::Simulator(const Problem& p)
    : p_(p), maker_(p.value_count, -1), gap_start_(p.value_count), gap_end_(p.value_count),
      kept_(p.value_count, kKeep), uses_(p.value_count), given_up_(p.node_count), present_(p.value_count), current_(p.value_count) {
  for (int32_t n = 0; n < p.node_count; ++n) {
    for (int32_t i = p.output_start[n]; i < p.output_start[n + 1]; ++i) maker_[p.outputs[i]] = n;
    for (int32_t i = p.input_start[n]; i < p.input_start[n + 1]; ++i) {
      auto& uses = uses_[p.inputs[i]];
      if (uses.empty() || uses.back() != n) uses.push_back(n);
    }
  }
  for (int32_t v = 0; v < p.value_count; ++v) {
    if (p.is_result[v]) results_.push_back(v);
    if (maker_[v] < 0 || p.is_result[v] || !p.may_repeat[maker_[v]] || p.nbytes[v] == 0 || uses_[v].empty()) continue;
    int32_t before = maker_[v], widest = 1;
    gap_start_[v] = uses_[v].back(), gap_end_[v] = -1;
    for (int32_t use : uses_[v]) {
      if (use - before > widest) widest = use - before, gap_start_[v] = before, gap_end_[v] = use;
      before = use;
    }
    if (!has_gap(v)) kept_[v] = 0;
    candidates_.push_back(v);
    given_up_[gap_start_[v]].push_back(v);
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [&](int32_t a, int32_t b) { return maker_[a] < maker_[b]; });
}

inline bool Simulator::stays(int32_t value, int32_t step, int32_t hold) const {
  if (hold == kKeep || hold == kRetain) return true;
  if (hold == 0) return false;
  const auto& uses = uses_[value];
  auto next = std::upper_bound(uses.begin(), uses.end(), step);
  return next != uses.end() && *next - step <= hold;
}

inline void Simulator::compute(int32_t node) {
  for (int32_t i = p_.input_start[node]; i < p_.input_start[node + 1]; ++i) {
    int32_t v = p_.inputs[i];
    if (!present_[v]) {
      compute(maker_[v]);
      again_.push_back(maker_[v]);
    }
  }
  runs_.push_back(node);
  for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) present_[p_.outputs[i]] = 1;
}

inline void Simulator::emit(const std::vector<int32_t>& hold) {
  runs_.clear();
  std::fill(present_.begin(), present_.end(), 0);
  for (int32_t t = 0; t < p_.node_count; ++t) {
    again_.clear();
    compute(t);
    for (int32_t node : again_)
      for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) {
        int32_t v = p_.outputs[i];
        present_[v] = stays(v, t, hold[v]);
      }
    for (int32_t v : given_up_[t])
      if (hold[v] != kKeep) present_[v] = 0;
  }
}

inline int64_t Simulator::peak(int32_t* at) {
  const int32_t count = static_cast<int32_t>(runs_.size());
  constexpr int32_t kAtEnd = std::numeric_limits<int32_t>::max();
  last_.clear();
  for (int32_t r = 0; r < count; ++r) {
    const int32_t node = runs_[r];
    for (int32_t i = p_.input_start[node]; i < p_.input_start[node + 1]; ++i) last_[current_[p_.inputs[i]]] = r;
    for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i) {
      current_[p_.outputs[i]] = static_cast<int32_t>(last_.size());
      last_.push_back(r);
    }
  }
  for (int32_t v : results_) last_[current_[v]] = kAtEnd;

  storage_of_.assign(last_.size(), kOutside);
  storages_.clear();
  int32_t instance = 0;
  for (int32_t r = 0; r < count; ++r) {
    const int32_t node = runs_[r];
    const int32_t first = instance;
    for (int32_t i = p_.output_start[node]; i < p_.output_start[node + 1]; ++i, ++instance) {
      int32_t storage = over(node, p_.outputs[i], r);
      for (int32_t j = first; j < instance; ++j)
        if (storage >= 0 && storage_of_[j] == storage) storage = kNew;
      if (storage == kOutside) continue;
      if (storage == kNew) {
        storage = static_cast<int32_t>(storages_.size());
        storages_.push_back({p_.nbytes[p_.outputs[i]], r, r});
      }
      storage_of_[instance] = storage;
      storages_[storage].end = last_[instance];
    }
    for (int32_t i = p_.output_start[node], k = first; i < p_.output_start[node + 1]; ++i, ++k)
      current_[p_.outputs[i]] = k;
  }

  change_.assign(count + 1, 0);
  int64_t results = 0;
  for (const auto& s : storages_) {
    if (s.end == kAtEnd) {
      results += s.nbytes;
    } else {
      change_[s.start] += s.nbytes;
      change_[s.end + 1] -= s.nbytes;
    }
  }
  int64_t live = 0, most = 0;
  *at = 0;
  for (int32_t r = 0; r < count; ++r) {
    live += change_[r];
    if (live > most) most = live, *at = r;
  }
  return most + results;
}

// The storage that an output of run `r` may take over: an input's that dies there, kOutside or kNew.
inline int32_t Simulator::over(int32_t node, int32_t output, int32_t r) const {
  for (int32_t k = p_.pair_start[node]; k < p_.pair_start[node + 1]; ++k) {
    if (p_.pairs[2 * k + 1] != output) continue;
    const int32_t source = p_.pairs[2 * k];
    if (source < 0) return kOutside;
    const int32_t* begin = p_.inputs + p_.input_start[node];
    const int32_t* end = p_.inputs + p_.input_start[node + 1];
    const int32_t from = current_[source];
    bool is_free = last_[from] == r && storage_of_[from] >= 0 && std::count(begin, end, source) == 1;
    return is_free ? storage_of_[from] : kNew;
  }
  return kNew;
}

inline Figures Simulator::run(const std::vector<int32_t>& hold) {
  emit(hold);
  Figures figures;
  for (int32_t node : runs_) figures.time_ns += p_.time_ns[node];
  figures.peak_bytes = peak(&figures.peak_run);
  return figures;
}

inline std::vector<int32_t> Simulator::live_at(int32_t run) const {
  std::vector<int32_t> live;
  int32_t instance = 0;
  for (int32_t r = 0; r <= run; ++r)
    for (int32_t i = p_.output_start[runs_[r]]; i < p_.output_start[runs_[r] + 1]; ++i, ++instance)
      if (last_[instance] >= run) live.push_back(p_.outputs[i]);
  return live;
}

}  // namespace sublinear
