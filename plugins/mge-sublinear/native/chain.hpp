// Plans for deep graphs: the forward phase as a chain of stages, and the best checkpoints for each amount of memory.
//
// The forward phase is cut where a single value crosses. Of each stage, a menu says what may stay inside it until its
// backward steps, and what that costs in bytes and time. A dynamic programme over (first stage, last stage, memory)
// then chooses, as in Beaumont et al. 2019 (https://hal.science/hal-02352969), extended by menus: either the first
// stage runs with one of its options, or the input of a later stage is kept, all from there on is done first, and what
// is before it runs again, with as much memory. The plan is given as holds, so that the simulator says what it takes.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "mincut.hpp"
#include "simulator.hpp"

namespace sublinear {

class Chain {
 public:
  // `turn`: the step at which everything that the backward phase reads is there.
  Chain(const Problem& problem, const Simulator& simulator, int32_t turn, int32_t most_stages)
      : p_(problem), s_(simulator), turn_(turn) {
    find_stages(most_stages);
    if (stages_.size() < kFewest) return;
    std::map<std::vector<int64_t>, std::vector<Option>> known;
    for (auto& stage : stages_) make_menu(stage, known);
  }

  // Plans for amounts of memory from `most` bytes down, by a table of its own for each `ratio` of them.
  std::vector<std::vector<int32_t>> plans(int64_t most, int32_t tables, double ratio, int32_t plans_a_table) {
    std::vector<std::vector<int32_t>> found;
    if (stages_.size() < kFewest) return found;
    for (int32_t i = 0; i < tables; ++i, most = static_cast<int64_t>(static_cast<double>(most) / ratio)) {
      slot_ = most / kSlots + 1;
      fill();
      for (int32_t k = 0; k < plans_a_table; ++k) {
        const auto memory = static_cast<int32_t>(kSlots / std::pow(ratio, static_cast<double>(k) / plans_a_table));
        if (best(0, count() - 1)[memory] >= kNever) break;
        hold_ = settled(p_, s_, turn_);
        follow(0, count() - 1, memory, -1);
        found.push_back(hold_);
      }
    }
    return found;
  }

 private:
  static constexpr size_t kFewest = 4;
  static constexpr int32_t kSlots = 400, kMenu = 12, kExhaustive = 9, kGreedy = 40;
  static constexpr float kNever = 1e30f;

  // What stays of a stage between its forward and its backward steps.
  struct Option {
    int64_t saved, peak;  // bytes beside the stage's input: at the turn without its output, and at most
    double again_ns;
    std::vector<int32_t> again_at;  // of each inner value: the backward step that computes it again; -1: it stays
  };

  struct Stage {
    int32_t first = 0, last = 0;      // nodes of the forward phase
    int32_t back = 0, back_last = 0;  // and of the backward phase; none where back > back_last
    int32_t output = -1;              // the value that crosses to the next stage
    int64_t input_bytes = 0, output_bytes = 0, pass_peak = 0;
    double pass_ns = 0;
    std::vector<int32_t> inner, last_use;  // candidates that it makes, but its output; the last steps that read them
    std::vector<Option> menu;
  };

  void find_stages(int32_t most_stages) {
    std::vector<int32_t> last_early(p_.value_count, -1), last_use(p_.value_count, -1);
    for (int32_t n = 0; n < p_.node_count; ++n)
      for (int32_t i = p_.input_start[n]; i < p_.input_start[n + 1]; ++i) {
        last_use[p_.inputs[i]] = n;
        if (n <= turn_) last_early[p_.inputs[i]] = n;
      }
    // By step: how many values cross behind it, the sum of their numbers and of their bytes; bytes saved before it.
    std::vector<int64_t> crossing(turn_ + 2, 0), which(turn_ + 2, 0), crossing_bytes(turn_ + 2, 0), weight(turn_ + 2, 0);
    for (int32_t v : s_.candidates()) {
      const int32_t made = s_.maker(v);
      if (made > turn_) continue;
      if (last_use[v] > turn_) weight[made + 1] += p_.nbytes[v];
      if (last_early[v] < 0) continue;
      ++crossing[made], --crossing[last_early[v]];
      which[made] += v, which[last_early[v]] -= v;
      crossing_bytes[made] += p_.nbytes[v], crossing_bytes[last_early[v]] -= p_.nbytes[v];
    }
    std::vector<int32_t> cuts;
    for (int32_t t = 0; t <= turn_; ++t) {
      if (t) crossing[t] += crossing[t - 1], which[t] += which[t - 1], crossing_bytes[t] += crossing_bytes[t - 1];
      weight[t + 1] += weight[t];
      if (t == turn_ || crossing[t] != 1) continue;
      if (!cuts.empty() && which[cuts.back()] == which[t]) cuts.pop_back();  // the same value crosses
      cuts.push_back(t);
    }
    cuts.push_back(turn_);
    // Neighbours merge, the lightest pair first.
    const auto weight_of = [&](size_t i, size_t j) { return weight[cuts[j] + 1] - (i ? weight[cuts[i - 1] + 1] : 0); };
    while (cuts.size() > 1) {
      size_t at = 0;
      for (size_t i = 0; i + 1 < cuts.size(); ++i)
        if (weight_of(i, i + 1) < weight_of(at, at + 1)) at = i;
      const bool is_light = weight_of(at, at + 1) * 4 * static_cast<int64_t>(cuts.size()) < weight[turn_ + 1];
      if (static_cast<int32_t>(cuts.size()) <= most_stages && !is_light) break;
      cuts.erase(cuts.begin() + static_cast<std::ptrdiff_t>(at));
    }
    int32_t first = 0;
    for (int32_t cut : cuts) {
      Stage stage;
      stage.first = first, stage.last = cut;
      if (!stages_.empty()) stage.input_bytes = stages_.back().output_bytes;
      for (int32_t n = first; n <= cut; ++n) {
        if (p_.may_repeat[n]) stage.pass_ns += p_.time_ns[n];
        int64_t made = n > 0 ? crossing_bytes[n - 1] : 0;
        for (int32_t i = p_.output_start[n]; i < p_.output_start[n + 1]; ++i) made += p_.nbytes[p_.outputs[i]];
        stage.pass_peak = std::max(stage.pass_peak, made - stage.input_bytes);
      }
      for (int32_t v : s_.candidates()) {
        if (s_.maker(v) < first || s_.maker(v) > cut) continue;
        if (cut < turn_ && last_early[v] > cut) stage.output = v, stage.output_bytes = p_.nbytes[v];
        else stage.inner.push_back(v), stage.last_use.push_back(last_use[v]);
      }
      stages_.push_back(std::move(stage));
      first = cut + 1;
    }
    find_backward(last_use);
  }

  // Says which steps of the backward phase belong to each stage.
  void find_backward(const std::vector<int32_t>& last_use) {
    // Between the last step that reads what later stages made and the first that reads what this one made inside, they
    // begin where the fewest bytes of gradients cross.
    std::vector<int32_t> reach(p_.node_count, -1);
    std::vector<int64_t> gradients(p_.node_count + 1, 0);
    for (int32_t n = 0; n < p_.node_count; ++n)
      for (int32_t i = p_.output_start[n]; i < p_.output_start[n + 1]; ++i) {
        const int32_t v = p_.outputs[i];
        if (n <= turn_) reach[n] = std::max(reach[n], last_use[v]);
        else if (last_use[v] > n) gradients[n] += p_.nbytes[v], gradients[last_use[v]] -= p_.nbytes[v];
      }
    for (int32_t n = 1; n < p_.node_count; ++n) gradients[n] += gradients[n - 1];
    int32_t begin = turn_ + 1;
    for (size_t k = stages_.size(); k-- > 0;) {
      auto& stage = stages_[k];
      int32_t limit = p_.node_count;
      for (int32_t v : stage.inner)
        if (s_.gap_end(v) > turn_) limit = std::min(limit, s_.gap_end(v));
      if (limit < p_.node_count && limit > begin)
        begin = 1 + static_cast<int32_t>(std::min_element(&gradients[begin - 1], &gradients[limit]) - gradients.data());
      stage.back = begin, stage.back_last = p_.node_count - 1;
      if (k + 1 < stages_.size()) stages_[k + 1].back_last = begin - 1;
      for (int32_t n = stage.first; n <= stage.last; ++n) begin = std::max(begin, reach[n] + 1);
    }
  }

  // A stage as a problem of its own: what gives its input, its forward steps, what is between them and its backward
  // steps (it reads the output and makes what else these read), and its backward steps.
  struct Part {
    std::vector<int32_t> input_start{0}, inputs, output_start{0}, outputs, pair_start{0}, pairs, role, value;
    std::vector<double> time_ns;
    std::vector<int64_t> nbytes, scratch;
    std::vector<uint8_t> is_result, may_repeat;
    std::vector<int64_t> key;  // equal for equal stages
    int32_t turn;
    Problem problem;
  };

  void make_part(const Stage& stage, Part& part) const {
    std::map<int32_t, int32_t> number;
    const auto local = [&](int32_t v) {
      auto [at, is_new] = number.insert({v, static_cast<int32_t>(part.nbytes.size())});
      if (is_new) part.nbytes.push_back(p_.nbytes[v]), part.value.push_back(v);
      return at->second;
    };
    const auto end = [&](double time_ns, uint8_t may_repeat, int64_t scratch) {
      part.input_start.push_back(static_cast<int32_t>(part.inputs.size()));
      part.output_start.push_back(static_cast<int32_t>(part.outputs.size()));
      part.pair_start.push_back(static_cast<int32_t>(part.pairs.size()) / 2);
      part.time_ns.push_back(time_ns), part.may_repeat.push_back(may_repeat);
      part.scratch.push_back(scratch);
    };
    const auto add = [&](int32_t n) {
      for (int32_t i = p_.input_start[n]; i < p_.input_start[n + 1]; ++i) part.inputs.push_back(local(p_.inputs[i]));
      for (int32_t i = p_.output_start[n]; i < p_.output_start[n + 1]; ++i) part.outputs.push_back(local(p_.outputs[i]));
      for (int32_t i = p_.pair_start[n]; i < p_.pair_start[n + 1]; ++i) {
        part.pairs.push_back(p_.pairs[2 * i] < 0 ? -1 : local(p_.pairs[2 * i]));
        part.pairs.push_back(local(p_.pairs[2 * i + 1]));
      }
      end(p_.time_ns[n], p_.may_repeat[n], p_.scratch[n]);
    };
    std::vector<uint8_t> is_made(p_.value_count, 0);
    const auto outside = [&](int32_t low, int32_t high) {
      std::vector<int32_t> found;
      for (int32_t n = low; n <= high; ++n) {
        for (int32_t i = p_.input_start[n]; i < p_.input_start[n + 1]; ++i)
          if (!is_made[p_.inputs[i]]) is_made[p_.inputs[i]] = 1, found.push_back(p_.inputs[i]);
        for (int32_t i = p_.output_start[n]; i < p_.output_start[n + 1]; ++i) is_made[p_.outputs[i]] = 1;
      }
      return found;
    };
    for (int32_t v : outside(stage.first, stage.last)) part.outputs.push_back(local(v));
    end(0, 0, 0);
    for (int32_t n = stage.first; n <= stage.last; ++n) add(n);
    part.turn = static_cast<int32_t>(part.time_ns.size());
    if (stage.output >= 0) part.inputs.push_back(local(stage.output));
    for (int32_t v : outside(stage.back, stage.back_last)) part.outputs.push_back(local(v));
    end(0, 0, 0);
    for (int32_t n = stage.back; n <= stage.back_last; ++n) add(n);
    part.role.assign(part.nbytes.size(), 0), part.is_result.assign(part.nbytes.size(), 0);
    part.problem = {static_cast<int32_t>(part.time_ns.size()), static_cast<int32_t>(part.nbytes.size()),
                    part.input_start.data(), part.inputs.data(), part.output_start.data(), part.outputs.data(),
                    part.pair_start.data(), part.pairs.data(), part.time_ns.data(), part.nbytes.data(),
                    part.is_result.data(), part.may_repeat.data(), part.role.data(), part.scratch.data()};
    for (const auto* list : {&part.input_start, &part.inputs, &part.output_start, &part.outputs, &part.pairs})
      part.key.insert(part.key.end(), list->begin(), list->end());
    for (const auto* list : {&part.nbytes, &part.scratch}) part.key.insert(part.key.end(), list->begin(), list->end());
    for (double t : part.time_ns) part.key.push_back(static_cast<int64_t>(t));
  }

  void make_menu(Stage& stage, std::map<std::vector<int64_t>, std::vector<Option>>& known) const {
    Part part;
    make_part(stage, part);
    auto [at, is_new] = known.insert({part.key, {}});
    if (is_new) at->second = options(stage, part);
    stage.menu = at->second;
  }

  std::vector<Option> options(const Stage& stage, const Part& part) const {
    Simulator simulator(part.problem);
    std::vector<int32_t> inner(stage.inner.size(), -1);  // their numbers in the part
    for (size_t i = 0; i < inner.size(); ++i) {
      auto at = std::find(part.value.begin(), part.value.end(), stage.inner[i]);
      if (at != part.value.end()) inner[i] = static_cast<int32_t>(at - part.value.begin());
    }
    std::vector<int32_t> ours;
    for (int32_t v : simulator.candidates())
      if (std::find(inner.begin(), inner.end(), v) != inner.end() && simulator.gap_end(v) > part.turn) ours.push_back(v);
    double once_ns = 0;
    for (double t : part.time_ns) once_ns += t;
    std::vector<Option> found;
    std::map<std::vector<uint8_t>, bool> seen;
    const auto attempt = [&](const std::vector<int32_t>& hold) {
      std::vector<uint8_t> stays;
      for (int32_t v : ours) stays.push_back(hold[v] == kKeep);
      if (!seen.insert({stays, true}).second) return;
      const auto figures = simulator.run(hold);
      Option option{0, figures.peak_bytes - stage.input_bytes, figures.time_ns - once_ns, {}};
      const auto& runs = simulator.runs();
      const auto middle = static_cast<int32_t>(std::find(runs.begin(), runs.end(), part.turn) - runs.begin());
      for (int32_t v : simulator.live_at(middle)) {
        const int32_t made = simulator.maker(v);
        if (made > 0 && made < part.turn && part.value[v] != stage.output) option.saved += part.nbytes[v];
      }
      // The step that a run belongs to: the next one of a backward node.
      std::vector<int32_t> again(part.turn, -1);
      int32_t step = part.problem.node_count;
      for (size_t r = runs.size(); r-- > static_cast<size_t>(middle) + 1;) {
        if (runs[r] > part.turn) step = runs[r];
        else if (runs[r] < part.turn) again[runs[r]] = step - part.turn - 1;
      }
      for (int32_t v : inner) {
        const bool is_kept = v < 0 || hold[v] == kKeep;
        option.again_at.push_back(is_kept ? -1 : std::max(0, again[simulator.maker(v)]));
      }
      found.push_back(std::move(option));
    };
    std::vector<int32_t> hold = settled(part.problem, simulator, part.turn);
    attempt(hold);
    if (ours.size() <= kExhaustive) {
      for (int32_t set = 1; set < 1 << ours.size(); ++set) {
        for (size_t i = 0; i < ours.size(); ++i) hold[ours[i]] = set >> i & 1 ? kRetain : kKeep;
        attempt(hold);
      }
    } else {
      // Ever less stays: from all, and from each cheapest pass, what saves most for its time goes first.
      for (auto& pass : cheap_passes(part.problem, simulator, part.turn - 1, 32)) attempt(pass);
      if (ours.size() > kGreedy) return thinned(std::move(found));
      for (int32_t left = static_cast<int32_t>(ours.size()); left > 0; --left) {
        int32_t best = -1;
        double best_worth = -1;
        const auto now = simulator.run(hold);
        for (int32_t v : ours) {
          if (hold[v] != kKeep) continue;
          hold[v] = kRetain;
          attempt(hold);
          const auto then = simulator.run(hold);
          const double worth = static_cast<double>(part.nbytes[v]) / (std::max(0.0, then.time_ns - now.time_ns) + 1);
          if (worth > best_worth) best = v, best_worth = worth;
          hold[v] = kKeep;
        }
        if (best >= 0) hold[best] = kRetain;
      }
    }
    return thinned(std::move(found));
  }

  // The options that none beats in bytes, peak and time; of many, a few that lie far from the line between neighbours.
  static std::vector<Option> thinned(std::vector<Option> all) {
    std::sort(all.begin(), all.end(), [](const Option& a, const Option& b) {
      if (a.saved != b.saved) return a.saved < b.saved;
      return a.again_ns != b.again_ns ? a.again_ns < b.again_ns : a.peak < b.peak;
    });
    std::vector<Option> kept;
    for (auto& option : all) {
      const bool is_beaten = std::any_of(kept.begin(), kept.end(), [&](const Option& o) {
        return o.again_ns <= option.again_ns && o.peak <= option.peak;
      });
      if (!is_beaten) kept.push_back(std::move(option));
    }
    while (kept.size() > kMenu) {
      size_t worst = 1;
      double least = std::numeric_limits<double>::max();
      for (size_t i = 1; i + 1 < kept.size(); ++i) {
        const auto &a = kept[i - 1], &b = kept[i + 1];
        const double loss = static_cast<double>(kept[i].saved - a.saved) * std::max(0.0, a.again_ns - b.again_ns) +
                            static_cast<double>(b.saved - a.saved) * std::abs(kept[i].again_ns - b.again_ns) * 0.5;
        if (loss < least) least = loss, worst = i;
      }
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(worst));
    }
    return kept;
  }

  int32_t count() const { return static_cast<int32_t>(stages_.size()); }

  // Rows of the table: the least time that stages i to j take again, by memory beside the input of i.
  float* best(int32_t i, int32_t j) {
    return table_.data() + (static_cast<size_t>(j) * (j + 1) / 2 + static_cast<size_t>(i)) * (kSlots + 1);
  }
  // Bytes in slots, rounded up for some stages and down for others, so that many small ones add up right.
  int32_t shift_of(int64_t bytes, int32_t stage) const {
    const double dither = stage * 0.6180339887 - std::floor(stage * 0.6180339887);
    return static_cast<int32_t>(static_cast<double>(bytes) / static_cast<double>(slot_) + dither);
  }
  int32_t room_of(int64_t bytes) const {
    return static_cast<int32_t>(std::min<int64_t>(kSlots + 1, (bytes + slot_ - 1) / slot_));
  }

  // Calls `choice` for each way to begin stages i to j: the option of stage i, or the stage k whose input is kept; from
  // which memory it can be done, how much of it goes to what is kept, its time, and the rows of the table for the rest.
  template <class F>
  void ways(int32_t i, int32_t j, F choice) {
    const Stage& stage = stages_[i];
    for (size_t o = 0; o < stage.menu.size(); ++o) {
      const auto& option = stage.menu[o];
      const auto cost = static_cast<float>(option.again_ns);
      const int32_t room = room_of(option.peak);
      if (i == j) {
        choice(static_cast<int32_t>(o), -1, room, 0, cost, nullptr, nullptr);
      } else {
        const int32_t shift = shift_of(option.saved + stage.output_bytes, i);
        choice(static_cast<int32_t>(o), -1, std::max(room, shift), shift, cost, best(i + 1, j), nullptr);
      }
    }
    double pass_ns = 0;
    int64_t peak = 0;
    for (int32_t k = i + 1; k <= j; ++k) {
      const Stage& before = stages_[k - 1];
      pass_ns += before.pass_ns;
      peak = std::max(peak, before.pass_peak + (k - 1 > i ? before.input_bytes : 0));
      const int32_t shift = shift_of(before.output_bytes, k);
      choice(-1, k, std::max(room_of(peak), shift), shift, static_cast<float>(pass_ns), best(k, j), best(i, k - 1));
    }
  }

  void fill() {
    table_.assign(static_cast<size_t>(count()) * (count() + 1) / 2 * (kSlots + 1), kNever);
    for (int32_t length = 0; length < count(); ++length)
      for (int32_t i = 0; i + length < count(); ++i) {
        float* row = best(i, i + length);
        ways(i, i + length, [&](int32_t, int32_t, int32_t from, int32_t shift, float cost, const float* rest,
                                const float* again) {
          if (!rest) {
            for (int32_t m = from; m <= kSlots; ++m) row[m] = std::min(row[m], cost);
          } else if (!again) {
            for (int32_t m = from; m <= kSlots; ++m) row[m] = std::min(row[m], cost + rest[m - shift]);
          } else {
            for (int32_t m = from; m <= kSlots; ++m) row[m] = std::min(row[m], cost + rest[m - shift] + again[m]);
          }
        });
      }
  }

  // How a value is held that stays from its first computation, or from when the backward steps of stage `from` begin.
  void keep(int32_t v, int32_t from) {
    if (from < 0) hold_[v] = kKeep;
    else hold_[v] = s_.has_gap(v) ? std::max(1, s_.gap_end(v) - stages_[from].back) : kRetain;
  }

  // Writes down the best plan for stages i to j; `from`: the stage before whose backward steps they run again, or -1.
  void follow(int32_t i, int32_t j, int32_t memory, int32_t from) {
    int32_t option = -1, next = -1, left = 0;
    float least = kNever;
    ways(i, j, [&](int32_t o, int32_t k, int32_t first, int32_t shift, float cost, const float* rest,
                   const float* again) {
      if (memory < first) return;
      const float time = cost + (rest ? rest[memory - shift] : 0) + (again ? again[memory] : 0);
      if (time < least) least = time, option = o, next = k, left = memory - shift;
    });
    const Stage& stage = stages_[i];
    if (option >= 0) {
      for (size_t n = 0; n < stage.inner.size(); ++n) {
        const int32_t v = stage.inner[n], step = stage.menu[option].again_at[n];
        if (s_.gap_end(v) <= turn_) continue;
        if (step < 0) keep(v, from);
        else hold_[v] = std::max({1, s_.gap_end(v) - stage.back - step, stage.last_use[n] - s_.gap_end(v)});
      }
      if (i == j) return;
      keep(stage.output, from);
      follow(i + 1, j, left, from);
    } else if (next >= 0) {
      keep(stages_[next - 1].output, from);
      follow(next, j, left, from);
      follow(i, next - 1, memory, next - 1);
    }
  }

  const Problem& p_;
  const Simulator& s_;
  int32_t turn_;
  std::vector<Stage> stages_;
  std::vector<float> table_;
  int64_t slot_ = 1;
  std::vector<int32_t> hold_;
};

}  // namespace sublinear
