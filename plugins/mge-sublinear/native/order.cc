// The free pass: an order in which less is live, found before anything is computed again.
//
// A node that frees at least as much as it makes runs as soon as it can: a weight's gradient right after the gradient
// that it comes from. A node that reads nothing of the plan waits for its first reader. All others keep their order.

#include "simulator.hpp"

using sublinear::Problem;

namespace {

struct Orderer {
  const Problem& p;
  std::vector<int32_t> maker, waiting, reads;  // nodes that make a value; inputs a node waits for; readers to come
  std::vector<std::vector<int32_t>> readers;
  std::vector<uint8_t> is_done;
  std::vector<int32_t> order;

  explicit Orderer(const Problem& problem)
      : p(problem), maker(p.value_count, -1), waiting(p.node_count, 0), reads(p.value_count, 0), readers(p.value_count),
        is_done(p.node_count, 0) {
    for (int32_t n = 0; n < p.node_count; ++n) {
      for (int32_t i = p.output_start[n]; i < p.output_start[n + 1]; ++i) maker[p.outputs[i]] = n;
      for (int32_t i = p.input_start[n]; i < p.input_start[n + 1]; ++i) {
        auto& mine = readers[p.inputs[i]];
        if (!mine.empty() && mine.back() == n) continue;
        mine.push_back(n);
        ++reads[p.inputs[i]];
        if (maker[p.inputs[i]] >= 0) ++waiting[n];
      }
    }
  }

  // Whether a value stays for a while: not one that nothing reads but updates, which come at once.
  bool is_kept(int32_t value) const {
    return std::any_of(readers[value].begin(), readers[value].end(), [&](int32_t n) { return p.may_repeat[n] != 0; });
  }

  // Bytes that are live afterwards, less those before.
  int64_t growth(int32_t node) const {
    int64_t bytes = 0;
    for (int32_t i = p.output_start[node]; i < p.output_start[node + 1]; ++i)
      if (p.is_result[p.outputs[i]] || is_kept(p.outputs[i])) bytes += p.nbytes[p.outputs[i]];
    for (int32_t i = p.input_start[node]; i < p.input_start[node + 1]; ++i) {
      const int32_t v = p.inputs[i];
      bool is_first = std::find(p.inputs + p.input_start[node], p.inputs + i, v) == p.inputs + i;
      if (is_first && maker[v] >= 0 && !p.is_result[v] && reads[v] == 1) bytes -= p.nbytes[v];
    }
    return bytes;
  }

  bool is_movable(int32_t node) const { return p.may_repeat[node] && !is_done[node]; }

  void finish(int32_t node) {
    is_done[node] = 1;
    order.push_back(node);
    for (int32_t i = p.input_start[node]; i < p.input_start[node + 1]; ++i) {
      const int32_t v = p.inputs[i];
      if (std::find(p.inputs + p.input_start[node], p.inputs + i, v) == p.inputs + i) --reads[v];
    }
    for (int32_t i = p.output_start[node]; i < p.output_start[node + 1]; ++i)
      for (int32_t reader : readers[p.outputs[i]]) --waiting[reader];
  }

  // Runs a node after what it waits for, then all that frees memory.
  void run(int32_t node) {
    for (int32_t i = p.input_start[node]; i < p.input_start[node + 1]; ++i) {
      const int32_t made_by = maker[p.inputs[i]];
      if (made_by >= 0 && !is_done[made_by]) run(made_by);
    }
    if (is_done[node]) return;
    finish(node);
    relieve(node);
  }

  void relieve(int32_t node) {
    std::vector<int32_t> near;
    for (int32_t i = p.output_start[node]; i < p.output_start[node + 1]; ++i)
      for (int32_t r : readers[p.outputs[i]]) near.push_back(r);
    for (int32_t i = p.input_start[node]; i < p.input_start[node + 1]; ++i)
      if (maker[p.inputs[i]] >= 0 && reads[p.inputs[i]] == 1)
        for (int32_t r : readers[p.inputs[i]]) near.push_back(r);
    std::sort(near.begin(), near.end());
    for (int32_t r : near)
      if (is_movable(r) && waiting[r] == 0 && growth(r) <= 0) {
        finish(r);
        relieve(r);
      }
  }
};

}  // namespace

// Fills `order` with the nodes in an order that works.
extern "C" __attribute__((visibility("default"))) void mge_sublinear_order(const Problem* problem, int32_t* order) {
  Orderer orderer(*problem);
  for (int32_t n = 0; n < problem->node_count; ++n) {
    bool reads_plan = !problem->may_repeat[n];
    for (int32_t i = problem->input_start[n]; i < problem->input_start[n + 1]; ++i)
      reads_plan |= orderer.maker[problem->inputs[i]] >= 0;
    bool is_wanted = reads_plan;
    for (int32_t i = problem->output_start[n]; i < problem->output_start[n + 1]; ++i)
      is_wanted |= problem->is_result[problem->outputs[i]] || orderer.readers[problem->outputs[i]].empty();
    if (is_wanted && !orderer.is_done[n]) orderer.run(n);
  }
  std::copy(orderer.order.begin(), orderer.order.end(), order);
}
