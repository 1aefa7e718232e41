// The search: from the plan that keeps everything towards ever smaller peaks, by annealing over the simulator.
//
// Targets fall in equal ratios. Each starts from the best plan of the target before; every plan that is met on the
// way is offered to a curve of the best times by peak. So the curve does not depend on any budget, and what a budget
// gets is never slower than what a smaller one gets. All choices come from one generator with a fixed seed.

#include <cmath>
#include <cstring>

#include "seeds.hpp"
#include "simulator.hpp"

namespace sublinear {
namespace {

// xorshift64* (Vigna 2016, https://doi.org/10.1145/2845077).
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717ull;
  }
  int32_t below(int32_t n) { return static_cast<int32_t>((next() >> 33) % static_cast<uint64_t>(n)); }
  double unit() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }
};

struct Plan {
  std::vector<int32_t> hold;
  Figures figures;
};

// The best plan for each of many ranges of peaks.
class Curve {
 public:
  Curve(int64_t lowest, int64_t highest, int32_t count, double most_ns)
      : most_ns_(most_ns), lowest_(std::log(std::max<int64_t>(1, lowest))), step_((std::log(std::max<int64_t>(1, highest)) - lowest_) / count),
        plans_(count + 1) {}

  void offer(const std::vector<int32_t>& hold, const Figures& f) {
    if (f.time_ns > most_ns_) return;
    double place = step_ > 0 ? (std::log(std::max<int64_t>(1, f.peak_bytes)) - lowest_) / step_ : 0;
    auto& best = plans_[std::min<size_t>(plans_.size() - 1, static_cast<size_t>(std::max(0.0, place)))];
    bool is_better = best.hold.empty() || f.time_ns < best.figures.time_ns ||
                     (f.time_ns == best.figures.time_ns && f.peak_bytes < best.figures.peak_bytes);
    if (is_better) best = {hold, f};
  }

  // Plans of which none is as fast with a peak as small, from the largest peak down.
  std::vector<Plan> front() const {
    std::vector<Plan> found;
    for (const auto& plan : plans_)
      if (!plan.hold.empty()) found.push_back(plan);
    std::sort(found.begin(), found.end(), [](const Plan& a, const Plan& b) {
      return a.figures.peak_bytes < b.figures.peak_bytes ||
             (a.figures.peak_bytes == b.figures.peak_bytes && a.figures.time_ns < b.figures.time_ns);
    });
    std::vector<Plan> kept;
    for (auto& plan : found)
      if (kept.empty() || plan.figures.time_ns < kept.back().figures.time_ns) kept.push_back(std::move(plan));
    std::reverse(kept.begin(), kept.end());
    return kept;
  }

 private:
  double most_ns_, lowest_, step_;
  std::vector<Plan> plans_;
};

class Search {
 public:
  Search(const Problem& problem, uint64_t seed, int64_t proposals)
      : p_(problem), simulator_(problem), random_{seed * 2 + 1}, proposals_(proposals),
        group_(problem.value_count, -1) {
    std::vector<std::pair<int32_t, int32_t>> ordered;
    for (int32_t v : simulator_.candidates()) ordered.push_back({p_.role[v], v});
    std::sort(ordered.begin(), ordered.end());
    int32_t before = -1;
    for (auto [role, v] : ordered) {
      if (role != before) groups_.emplace_back(), before = role;
      groups_.back().push_back(v);
      group_[v] = static_cast<int32_t>(groups_.size()) - 1;
    }
  }

  std::vector<Plan> run(bool only_checkpoints) {
    const std::vector<int32_t> all = simulator_.kept();
    Figures start = simulator_.run(all);
    full_time_ = start.time_ns, full_peak_ = start.peak_bytes;
    Curve curve(full_peak_ / 128, full_peak_, 384, kSlowest * full_time_);
    curve_ = &curve;
    curve.offer(all, start);
    for (const auto& seed : seeds_at(start.peak_run, only_checkpoints)) curve.offer(seed, simulator_.run(seed));
    if (!only_checkpoints && !simulator_.candidates().empty()) descend();
    return curve.front();
  }

 private:
  static constexpr double kSlowest = 3;  // times the time without recomputation
  static constexpr int32_t kTargets = 36;
  static constexpr double kRatio = 0.9;  // of one target to the next

  std::vector<std::vector<int32_t>> seeds_at(int32_t turn, bool only_checkpoints) {
    Seeds seeds(p_, simulator_, turn);
    std::vector<std::vector<int32_t>> found;
    if (only_checkpoints) {
      for (int32_t segments = 1; segments <= 64 && segments < p_.node_count; ++segments)
        found.push_back(seeds.checkpoints(segments, 1));
      return found;
    }
    found = seeds.cheap();
    for (int32_t outer = 1; outer <= 64 && outer < p_.node_count; outer += 1 + outer / 3)
      for (int32_t inner : {1, 2, 3, 4, 6, 8}) found.push_back(seeds.checkpoints(outer, inner));
    return found;
  }

  // Targets far below what can be reached have their use: they press the smallest plan further down.
  void descend() {
    for (int32_t i = 0; i < 2 * kTargets; ++i) {
      const double rung = i < kTargets ? i + 1 : i - kTargets + 0.5;  // the second sweep goes between
      const auto target = static_cast<int64_t>(static_cast<double>(full_peak_) * std::pow(kRatio, rung));
      anneal(nearest(target), target, proposals_ / (2 * kTargets));
    }
  }

  // The fastest known plan within a target; where there is none, the one with the smallest peak.
  Plan nearest(int64_t target) const {
    const auto front = curve_->front();
    for (const auto& plan : front)
      if (plan.figures.peak_bytes <= target) return plan;
    return front.back();
  }

  // Time, and what the peak is over the target: cheap at first, so that what saves most for its time goes first.
  static double energy(double time_share, double over, double price) { return time_share + price * std::max(0.0, over); }

  void anneal(const Plan& start, int64_t target, int64_t proposals) {
    std::vector<int32_t> hold = start.hold, tried;
    Figures now = simulator_.run(hold);
    std::vector<int32_t> live = simulator_.live_at(now.peak_run);
    const auto over = [&](const Figures& f) { return static_cast<double>(f.peak_bytes) / static_cast<double>(target) - 1; };
    for (int64_t k = 0; k < proposals; ++k) {
      const double progress = static_cast<double>(k) / static_cast<double>(proposals);
      const double heat = 1e-3 * std::pow(0.02, progress), price = 0.1 * std::pow(30.0, progress);
      tried = hold;
      propose(tried, live, now.peak_bytes > target);
      if (tried == hold) continue;
      Figures figures = simulator_.run(tried);
      curve_->offer(tried, figures);
      const double rise = energy(figures.time_ns / full_time_, over(figures), price) -
                          energy(now.time_ns / full_time_, over(now), price);
      if (rise <= 0 || random_.unit() < std::exp(-rise / heat)) {
        hold.swap(tried);
        now = figures;
        live = simulator_.live_at(now.peak_run);
      }
    }
  }

  // A value whose bytes cost little time, if it should go; or one that costs much for its bytes, if it should stay.
  int32_t pick(const std::vector<int32_t>& from, const std::vector<int32_t>& hold, bool is_going) {
    int32_t best = -1;
    double best_worth = 0;
    for (int32_t tries = 1 + random_.below(6); tries > 0; --tries) {
      int32_t v = from[random_.below(static_cast<int32_t>(from.size()))];
      if (group_[v] < 0 || (hold[v] == kKeep) != is_going) continue;
      if (!simulator_.has_gap(v) && random_.below(4) != 0) continue;
      double worth = static_cast<double>(p_.nbytes[v]) / (p_.time_ns[simulator_.maker(v)] + 1);
      if (!is_going) worth = 1 / worth;
      if (best < 0 || worth > best_worth) best = v, best_worth = worth;
    }
    return best;
  }

  int32_t lower_state() {
    const int32_t kind = random_.below(8);
    if (kind < 5) return kRetain;
    return kind < 7 ? 0 : 1 + random_.below(std::max(1, p_.node_count / 4));
  }

  // Sets what is made near a value; now and then also all that does the same job in a part of the graph.
  void neighbours(std::vector<int32_t>& hold, int32_t value, bool is_going) {
    const auto& all = simulator_.candidates();
    const int32_t state = is_going ? lower_state() : kKeep;
    const int32_t at = simulator_.maker(value), width = 2 + random_.below(12), low = at - random_.below(width);
    const bool is_wide = random_.below(3) == 0;
    const int32_t first = random_.below(p_.node_count), last = first + random_.below(p_.node_count);
    auto begin = std::lower_bound(all.begin(), all.end(), low, [&](int32_t v, int32_t t) { return simulator_.maker(v) < t; });
    for (auto v = begin; v != all.end() && simulator_.maker(*v) < low + width; ++v) {
      hold[*v] = state;
      if (!is_wide) continue;
      for (int32_t w : groups_[group_[*v]])
        if (first <= simulator_.maker(w) && simulator_.maker(w) <= last) hold[w] = state;
    }
  }

  void propose(std::vector<int32_t>& hold, const std::vector<int32_t>& live, bool is_over) {
    const auto& all = simulator_.candidates();
    const auto& from = live.empty() || random_.below(4) == 0 ? all : live;
    const int32_t kind = random_.below(16);
    if (kind < 4) {  // one goes, another stays
      int32_t going = pick(from, hold, true), staying = pick(all, hold, false);
      if (going >= 0) hold[going] = lower_state();
      if (staying >= 0) hold[staying] = kKeep;
      return;
    }
    if (kind < 8) {  // neighbours together: what one of them is computed from may go with it
      neighbours(hold, from[random_.below(static_cast<int32_t>(from.size()))], is_over || random_.below(4) == 0);
      return;
    }
    const bool is_going = random_.below(4) == 0 ? !is_over : is_over;
    int32_t v = pick(is_going ? from : all, hold, is_going);
    if (kind == 15 || v < 0) {  // another way to compute it again
      v = from[random_.below(static_cast<int32_t>(from.size()))];
      if (group_[v] < 0) return;
      if (hold[v] != kKeep) hold[v] = lower_state();
      return;
    }
    const int32_t state = is_going ? lower_state() : kKeep;
    const auto& group = groups_[group_[v]];
    const int32_t size = static_cast<int32_t>(group.size());
    switch (kind) {
      case 8:  // all that do the same job
        for (int32_t w : group) hold[w] = state;
        break;
      case 9: case 10: {  // a run of them
        int32_t a = random_.below(size), b = std::min(size, a + 1 + random_.below(size));
        for (int32_t i = a; i < b; ++i) hold[group[i]] = state;
        break;
      }
      case 11: {  // every k-th is kept
        int32_t k = 2 + random_.below(std::max(1, size / 2)), phase = random_.below(k);
        for (int32_t i = 0; i < size; ++i) hold[group[i]] = i % k == phase ? kKeep : lower_state();
        break;
      }
      default:
        hold[v] = state;
    }
  }

  const Problem& p_;
  Simulator simulator_;
  Random random_;
  int64_t proposals_;
  std::vector<int32_t> group_;  // of each value, or -1
  std::vector<std::vector<int32_t>> groups_;
  Curve* curve_ = nullptr;
  double full_time_ = 1;
  int64_t full_peak_ = 1;
};

}  // namespace
}  // namespace sublinear

using sublinear::Problem;

struct MgeSublinearPlans {
  std::vector<sublinear::Plan> plans;
  std::vector<std::vector<int32_t>> runs;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

// Searches; the result belongs to the caller, who gives it to mge_sublinear_free.
EXPORT MgeSublinearPlans* mge_sublinear_search(const Problem* problem, uint64_t seed, int64_t proposals,
                                               int32_t only_checkpoints) {
  auto* found = new MgeSublinearPlans;
  found->plans = sublinear::Search(*problem, seed, proposals).run(only_checkpoints != 0);
  sublinear::Simulator simulator(*problem);
  for (const auto& plan : found->plans) {
    simulator.run(plan.hold);
    found->runs.push_back(simulator.runs());
  }
  return found;
}

EXPORT int32_t mge_sublinear_count(const MgeSublinearPlans* found) {
  return static_cast<int32_t>(found->plans.size());
}

// Fills in what one plan takes, and returns how many runs it has.
EXPORT int32_t mge_sublinear_figures(const MgeSublinearPlans* found, int32_t i, double* time_ns, int64_t* peak_bytes,
                                     int32_t* peak_node) {
  const auto& figures = found->plans[i].figures;
  *time_ns = figures.time_ns, *peak_bytes = figures.peak_bytes;
  *peak_node = found->runs[i].empty() ? -1 : found->runs[i][figures.peak_run];
  return static_cast<int32_t>(found->runs[i].size());
}

EXPORT void mge_sublinear_runs(const MgeSublinearPlans* found, int32_t i, int32_t* runs) {
  std::copy(found->runs[i].begin(), found->runs[i].end(), runs);
}

EXPORT void mge_sublinear_free(MgeSublinearPlans* found) { delete found; }

// Runs one plan, for NULL the one that computes nothing again: its figures; its runs go to `runs`, which has room for `capacity`. Returns how many there are.
EXPORT int32_t mge_sublinear_simulate(const Problem* problem, const int32_t* hold, double* time_ns, int64_t* peak_bytes,
                                      int32_t* runs, int32_t capacity) {
  sublinear::Simulator simulator(*problem);
  std::vector<int32_t> holds = simulator.kept();
  if (hold) holds.assign(hold, hold + problem->value_count);
  const auto figures = simulator.run(holds);
  *time_ns = figures.time_ns, *peak_bytes = figures.peak_bytes;
  const auto& order = simulator.runs();
  std::copy_n(order.begin(), std::min<size_t>(order.size(), static_cast<size_t>(capacity)), runs);
  return static_cast<int32_t>(order.size());
}
