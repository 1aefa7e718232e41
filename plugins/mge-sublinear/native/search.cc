// The search: from the plan that keeps everything towards ever smaller peaks, by annealing over the simulator.
//
// Targets fall in equal ratios, first as far as plans follow them, then, in three sweeps, as far as the smallest plan. Each
// starts from the best plan that is known for it; every plan that is met on the way is offered to a curve of the best
// times by peak. So the curve does not depend on any budget, and what a budget
// gets is never slower than what a smaller one gets. All choices come from one generator with a fixed seed.

#include <cmath>

#include "chain.hpp"
#include "mincut.hpp"
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
      : most_ns_(most_ns), lowest_(std::log(std::max<int64_t>(1, lowest))),
        step_((std::log(std::max<int64_t>(1, highest)) - lowest_) / count), plans_(count + 1) {}

  void offer(const std::vector<int32_t>& hold, const Figures& f) {
    if (f.time_ns > most_ns_) return;
    auto& best = plans_[range(static_cast<double>(f.peak_bytes))];
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

  // The fastest known plan within a target; where there is none, the one with the smallest peak.
  const Plan& nearest(double target) const {
    const Plan* best = &smallest();
    for (const auto& plan : plans_) {
      if (plan.hold.empty() || static_cast<double>(plan.figures.peak_bytes) > target) continue;
      if (plan.figures.time_ns < best->figures.time_ns) best = &plan;
    }
    return *best;
  }

  // A plan with about this peak, or the next larger one; the plan that keeps everything is the last.
  const Plan& near(double peak_bytes) const {
    size_t i = range(peak_bytes);
    while (plans_[i].hold.empty()) ++i;
    return plans_[i];
  }

  const Plan& smallest() const {
    const Plan* best = nullptr;
    for (const auto& plan : plans_)
      if (!plan.hold.empty() && (!best || plan.figures.peak_bytes < best->figures.peak_bytes)) best = &plan;
    return *best;
  }

 private:
  size_t range(double peak_bytes) const {
    const double place = step_ > 0 ? (std::log(std::max(1.0, peak_bytes)) - lowest_) / step_ : 0;
    return static_cast<size_t>(std::min(std::max(0.0, place), static_cast<double>(plans_.size() - 1)));
  }

  double most_ns_, lowest_, step_;
  std::vector<Plan> plans_;
};

class Search {
 public:
  Search(const Problem& problem, uint64_t seed, int64_t proposals)
      : p_(problem), simulator_(problem), random_{seed * 2 + 1}, proposals_(proposals),
        place_(problem.value_count, -1), group_(problem.value_count, -1) {
    const auto& all = simulator_.candidates();
    for (size_t i = 0; i < all.size(); ++i) place_[all[i]] = static_cast<int32_t>(i);
    std::vector<std::pair<int32_t, int32_t>> ordered;
    for (int32_t v : all) ordered.push_back({p_.role[v], v});
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
    Curve curve(full_peak_ / 128, full_peak_, kPlans, kSlowest * full_time_);
    curve_ = &curve;
    curve.offer(all, start);
    turn_ = start.peak_run;
    offer(first_plans(only_checkpoints));
    if (!only_checkpoints && !simulator_.candidates().empty()) descend();
    return curve.front();
  }

 private:
  static constexpr double kSlowest = 3;  // times the time without recomputation
  static constexpr int32_t kPlans = 2048;  // ranges of peaks on the curve
  static constexpr int32_t kTargets = 36, kRungs = 24, kSweeps = 3;
  static constexpr double kRatio = 0.9;  // of one target to the next
  static constexpr double kPress = 8;    // of the smallest plan to the smallest target

  void offer(const std::vector<std::vector<int32_t>>& plans) {
    for (const auto& hold : plans) curve_->offer(hold, simulator_.run(hold));
  }

  std::vector<std::vector<int32_t>> first_plans(bool only_checkpoints) {
    Seeds seeds(p_, simulator_, turn_);
    std::vector<std::vector<int32_t>> found;
    if (only_checkpoints) {
      for (int32_t segments = 1; segments <= 64 && segments < p_.node_count; ++segments)
        found.push_back(seeds.checkpoints(segments, 1));
      return found;
    }
    found = cheap_passes(p_, simulator_, turn_, 24);
    for (int32_t outer = 1; outer <= 64 && outer < p_.node_count; outer += 1 + outer / 3)
      for (int32_t inner : {1, 2, 3, 4, 6, 8}) found.push_back(seeds.checkpoints(outer, inner));
    return found;
  }

  // Plans of a chain, for deep graphs. They come late: where others are as good, those leave more to find.
  void offer_chains() {
    for (int32_t most_stages : {8, 16, 32, 160}) offer(Chain(p_, simulator_, turn_, most_stages).plans(full_peak_, 4, 3, 20));
  }

  // Targets far below what can be reached have their use: they press the smallest plan further down.
  void descend() {
    const auto full = static_cast<double>(full_peak_);
    const int64_t first = proposals_ * 3 / 10;
    int64_t spent = 0;
    for (double target = full * kRatio; spent < first; target *= kRatio) {
      if (static_cast<double>(curve_->smallest().figures.peak_bytes) > kPress * target) break;
      anneal(target, first / kTargets);
      spent += first / kTargets;
    }
    for (int32_t sweep = 0; sweep < kSweeps; ++sweep) {
      if (sweep == 1) offer_chains();
      const double lowest = 0.9 * static_cast<double>(curve_->smallest().figures.peak_bytes) / full;
      const int64_t each = (proposals_ - spent) / (kSweeps - sweep) / (kRungs * (kRungs + 1));
      for (int32_t rung = 1; rung <= kRungs; ++rung) {  // small targets take more; later sweeps go between
        const int64_t count = each * (kRungs / 2 + rung);
        anneal(full * std::pow(lowest, (rung - static_cast<double>(sweep) / kSweeps) / kRungs), count);
        spent += count;
      }
    }
  }

  // Time, and what the peak is over the target: cheap at first, so that what saves most for its time goes first.
  void anneal(double target, int64_t proposals) {
    target_ = target;
    std::vector<int32_t> hold = curve_->nearest(target).hold, tried;
    Figures now = simulator_.run(hold), figures;
    std::vector<int32_t> live = simulator_.live_at(now.peak_run);
    const auto over = [&](const Figures& f) { return std::max(0.0, static_cast<double>(f.peak_bytes) / target - 1); };
    for (int64_t k = 0; k < proposals; ++k) {
      const double progress = static_cast<double>(k) / static_cast<double>(proposals);
      const double heat = 1e-3 * std::pow(0.02, progress), price = 0.1 * std::pow(30.0, progress);
      tried = hold;
      propose(tried, live, over(now) > 0);
      if (tried == hold) continue;
      // The most that it may come to, drawn first: what takes longer than that is given up on the way.
      const double most = now.time_ns / full_time_ + price * over(now) - heat * std::log(1 - random_.unit());
      if (!simulator_.run(tried, std::min(most, kSlowest) * full_time_, figures)) continue;
      curve_->offer(tried, figures);
      if (figures.time_ns / full_time_ + price * over(figures) > most) continue;
      hold.swap(tried);
      now = figures;
      live = simulator_.live_at(now.peak_run);
    }
  }

  // A value whose bytes cost little time, if it should go; or one that costs much for its bytes, if it should stay.
  int32_t pick(const std::vector<int32_t>& from, const std::vector<int32_t>& hold, bool is_going) {
    int32_t best = -1;
    double best_worth = 0;
    for (int32_t tries = 1 + random_.below(6); tries > 0; --tries) {
      int32_t v = from[random_.below(static_cast<int32_t>(from.size()))];
      if (group_[v] < 0 || is_kept(v, hold[v]) != is_going) continue;
      if (!simulator_.has_gap(v) && random_.below(4) != 0) continue;
      double worth = static_cast<double>(p_.nbytes[v]) / (p_.time_ns[simulator_.maker(v)] + 1);
      if (!is_going) worth = 1 / worth;
      if (best < 0 || worth > best_worth) best = v, best_worth = worth;
    }
    return best;
  }

  // Ways to give a value up, and to compute it again. One without a use in the backward phase goes behind its last use.
  int32_t lower_state(int32_t v) {
    const int32_t kind = random_.below(8);
    const int32_t after = kind < 5 ? kRetain : kind < 7 ? 0 : 1 + random_.below(std::max(1, p_.node_count / 4));
    const int32_t served = random_.below(16);
    if (served == 0) return hold_of(kServed, after);
    const int32_t count = simulator_.place_count(v), way = count > 1 ? random_.below(8) : 7;
    const int32_t places = way < 2 ? kBehind : way < 3 ? 1 + random_.below((1 << count) - 1) : kLongest;
    return hold_of(served == 1 ? places | kServed : places, after);
  }

  int32_t upper_state(int32_t v) {
    return simulator_.has_gap(v) && random_.below(4) == 0 ? hold_of(kBehind, kRetain) : kKeep;
  }

  // Whether a value stays where it waits longest.
  bool is_kept(int32_t v, int32_t hold) const {
    return hold == kKeep || (simulator_.has_gap(v) && !(places(hold) & ~kBehind & ~kServed));
  }

  // Sets what is made near a value; now and then also all that does the same job in a part of the graph.
  void neighbours(std::vector<int32_t>& hold, int32_t value, bool is_going) {
    const auto& all = simulator_.candidates();
    const auto state = [&](int32_t w) { return is_going ? lower_state(w) : upper_state(w); };
    const int32_t at = simulator_.maker(value), width = 2 + random_.below(12), low = at - random_.below(width);
    const bool is_wide = random_.below(3) == 0;
    const int32_t first = random_.below(p_.node_count), last = first + random_.below(p_.node_count);
    auto begin = std::lower_bound(all.begin(), all.end(), low, [&](int32_t v, int32_t t) { return simulator_.maker(v) < t; });
    for (auto v = begin; v != all.end() && simulator_.maker(*v) < low + width; ++v) {
      hold[*v] = state(*v);
      if (!is_wide) continue;
      for (int32_t w : groups_[group_[*v]])
        if (first <= simulator_.maker(w) && simulator_.maker(w) <= last) hold[w] = state(w);
    }
  }

  // Takes over what another plan of about the same size does in a part of the graph.
  void cross(std::vector<int32_t>& hold) {
    const Plan& other = curve_->near(target_ * (0.9 + 0.2 * random_.unit()));
    const auto& all = simulator_.candidates();
    const int32_t size = static_cast<int32_t>(all.size()), first = random_.below(size);
    const int32_t last = std::min(size, first + 1 + random_.below(std::max(1, size >> random_.below(8))));
    for (int32_t i = first; i < last; ++i) hold[all[i]] = other.hold[all[i]];
  }

  // Does near one value what is done near another one that does the same job.
  void imitate(std::vector<int32_t>& hold) {
    const auto& all = simulator_.candidates();
    const int32_t size = static_cast<int32_t>(all.size()), to = random_.below(size);
    const auto& group = groups_[group_[all[to]]];
    const int32_t from = place_[group[random_.below(static_cast<int32_t>(group.size()))]];
    const int32_t width = 1 + random_.below(24), before = random_.below(width);
    const std::vector<int32_t> old = hold;
    for (int32_t d = -before; d < width - before; ++d) {
      if (std::min(to, from) + d < 0 || std::max(to, from) + d >= size) continue;
      const int32_t a = all[to + d], b = all[from + d];
      if (group_[a] == group_[b]) hold[a] = old[b];
    }
  }

  void propose(std::vector<int32_t>& hold, const std::vector<int32_t>& live, bool is_over) {
    const auto& all = simulator_.candidates();
    const auto& from = live.empty() || random_.below(4) == 0 ? all : live;
    const int32_t kind = random_.below(26);
    if (kind >= 20) return cross(hold);
    if (kind >= 16) return imitate(hold);
    if (kind < 4) {  // one goes, another stays
      int32_t going = pick(from, hold, true), staying = pick(all, hold, false);
      if (going >= 0) hold[going] = lower_state(going);
      if (staying >= 0) hold[staying] = upper_state(staying);
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
      if (hold[v] != kKeep) hold[v] = lower_state(v);
      return;
    }
    const auto state = [&](int32_t w) { return is_going ? lower_state(w) : upper_state(w); };
    const auto& group = groups_[group_[v]];
    const int32_t size = static_cast<int32_t>(group.size());
    switch (kind) {
      case 8:  // all that do the same job
        for (int32_t w : group) hold[w] = state(w);
        break;
      case 9: case 10: {  // a run of them
        int32_t a = random_.below(size), b = std::min(size, a + 1 + random_.below(size));
        for (int32_t i = a; i < b; ++i) hold[group[i]] = state(group[i]);
        break;
      }
      case 11: {  // every k-th is kept
        int32_t k = 2 + random_.below(std::max(1, size / 2)), phase = random_.below(k);
        for (int32_t i = 0; i < size; ++i) hold[group[i]] = i % k == phase ? kKeep : lower_state(group[i]);
        break;
      }
      default:
        hold[v] = state(v);
    }
  }

  const Problem& p_;
  Simulator simulator_;
  Random random_;
  int64_t proposals_;
  std::vector<int32_t> place_, group_;  // of each value: among the candidates, of those with the same job; or -1
  std::vector<std::vector<int32_t>> groups_;
  Curve* curve_ = nullptr;
  int32_t turn_ = 0;  // the run at the peak of the plan that keeps everything
  double full_time_ = 1, target_ = 1;
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

// Fills `hold` with the holds that save least between the phases, at a price of time.
EXPORT void mge_sublinear_least_saved(const Problem* problem, int32_t turn, double bytes_per_ns, int32_t* hold) {
  const auto found = sublinear::least_saved(*problem, sublinear::Simulator(*problem), turn, bytes_per_ns);
  std::copy(found.begin(), found.end(), hold);
}
