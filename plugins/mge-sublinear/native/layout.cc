// Offsets in one arena: greedy layouts in several orders, the best of them improved by moving what is on top first.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

struct Layout {
  int32_t count;
  const int32_t *start, *end;  // first and last step, both included
  const int64_t* nbytes;       // multiples of the alignment
  std::vector<std::vector<int32_t>> beside;  // of each value: those that live at the same time

  Layout(int32_t n, const int32_t* s, const int32_t* e, const int64_t* b)
      : count(n), start(s), end(e), nbytes(b), beside(n) {
    std::vector<int32_t> by_start(n), live;
    std::iota(by_start.begin(), by_start.end(), 0);
    std::stable_sort(by_start.begin(), by_start.end(), [&](int32_t x, int32_t y) { return start[x] < start[y]; });
    for (int32_t i : by_start) {
      if (nbytes[i] == 0) continue;
      live.erase(std::remove_if(live.begin(), live.end(), [&](int32_t j) { return end[j] < start[i]; }), live.end());
      for (int32_t j : live) beside[i].push_back(j), beside[j].push_back(i);
      live.push_back(i);
    }
  }

  // Places values in this order, each into the smallest gap that takes it; returns the size of the arena.
  int64_t place(const std::vector<int32_t>& order, std::vector<int64_t>& offsets) const {
    std::vector<std::pair<int64_t, int64_t>> taken;
    int64_t top = 0;
    std::fill(offsets.begin(), offsets.end(), -1);
    for (int32_t i : order) {
      taken.clear();
      for (int32_t j : beside[i])
        if (offsets[j] >= 0) taken.push_back({offsets[j], offsets[j] + nbytes[j]});
      std::sort(taken.begin(), taken.end());
      int64_t best = -1, best_gap = 0, reach = 0;
      for (auto [low, high] : taken) {
        const int64_t gap = low - reach;
        if (gap >= nbytes[i] && (best < 0 || gap < best_gap)) best = reach, best_gap = gap;
        reach = std::max(reach, high);
      }
      offsets[i] = best < 0 ? reach : best;
      top = std::max(top, offsets[i] + nbytes[i]);
    }
    return top;
  }

  int64_t most_live() const {
    int32_t steps = 0;
    for (int32_t i = 0; i < count; ++i) steps = std::max(steps, end[i] + 1);
    std::vector<int64_t> change(steps + 1, 0);
    for (int32_t i = 0; i < count; ++i) change[start[i]] += nbytes[i], change[end[i] + 1] -= nbytes[i];
    int64_t live = 0, most = 0;
    for (int64_t c : change) most = std::max(most, live += c);
    return most;
  }
};

}  // namespace

// Fills in `offsets`; returns the size of the arena. `most_work` bounds the time: pairs of values that are looked at.
extern "C" __attribute__((visibility("default"))) int64_t mge_sublinear_layout(
    int32_t count, const int32_t* start, const int32_t* end, const int64_t* nbytes, int64_t most_work,
    int64_t* offsets) {
  const Layout layout(count, start, end, nbytes);
  const int64_t bound = layout.most_live();
  const auto rank = [&](int32_t kind, int32_t i) -> double {
    const double size = static_cast<double>(nbytes[i]), life = end[i] - start[i] + 1.0;
    switch (kind) {
      case 0: return size;
      case 1: return life * 1e-3 + (size > 0 ? 1.0 : 0.0);
      case 2: return size * life;
      case 3: return -start[i];
      default: return end[i];
    }
  };
  std::vector<int64_t> found(count), best(count);
  std::vector<int32_t> order(count), best_order;
  int64_t least = -1;
  const auto attempt = [&] {
    const int64_t top = layout.place(order, found);
    if (least < 0 || top < least) least = top, best = found, best_order = order;
  };
  for (int32_t kind = 0; kind < 5 && least != bound; ++kind) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rank(kind, a) > rank(kind, b); });
    attempt();
  }
  // What reaches the top of the arena goes further ahead in the order, to a drawn place: first among large values alone,
  // which small ones then fit around, then among all.
  uint64_t state = 1;
  const auto below = [&](size_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>(state >> 33) % n;
  };
  const int64_t largest = count ? *std::max_element(nbytes, nbytes + count) : 0;
  for (const int64_t large : {largest / 32, int64_t{0}}) {
    if (least <= bound) break;
    std::vector<int32_t> first, rest;
    for (int32_t i : best_order) (nbytes[i] >= large ? first : rest).push_back(i);
    std::stable_sort(rest.begin(), rest.end(), [&](int32_t x, int32_t y) { return nbytes[x] > nbytes[y]; });
    int64_t work = 1;
    for (int32_t i : first)
      work += 1 + std::count_if(layout.beside[i].begin(), layout.beside[i].end(), [&](int32_t j) { return nbytes[j] >= large; });
    std::vector<int32_t> now_order = first, best_first = first;
    std::vector<int64_t> now(count);
    int64_t now_top = layout.place(first, now), least_first = now_top;
    for (int64_t k = std::min<int64_t>(4000, most_work / work); k > 0 && least_first > bound; --k) {
      order = now_order;
      std::vector<size_t> high;
      for (size_t i = 0; i < order.size(); ++i)
        if (now[order[i]] + nbytes[order[i]] == now_top) high.push_back(i);
      const auto at = order.begin() + static_cast<std::ptrdiff_t>(high[below(high.size())]);
      const auto to = order.begin() + static_cast<std::ptrdiff_t>(below(static_cast<size_t>(at - order.begin()) + 1));
      std::rotate(to, at, at + 1);
      for (size_t swaps = below(4); swaps > 0; --swaps) std::swap(order[below(order.size())], order[below(order.size())]);
      const int64_t top = layout.place(order, found);
      if (top > now_top + (k % 500 < 250 ? bound / 200 : 0)) continue;
      now_top = top, now = found, now_order = order;
      if (top < least_first) least_first = top, best_first = order;
    }
    order = best_first;
    order.insert(order.end(), rest.begin(), rest.end());
    attempt();
  }
  std::copy(best.begin(), best.end(), offsets);
  return least < 0 ? 0 : least;
}
