// attention and its gradient; the same as x86:: ops with the tokens before the heads.
#include "mge/cpu/attention.hpp"

#include "mge/cpu/halves.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;
using attention::Head;
using attention::RowsOf;

// Matrices of a tensor: its steps on the axes (batch..., rows, columns) of `full`, 0 where it repeats.
class Matrices {
 public:
  Matrices(std::vector<int64_t> shape, size_t ndim, bool tokens_first) {
    std::vector<int64_t> dense = dense_steps(shape);
    steps_.assign(ndim - shape.size(), 0);
    for (size_t i = 0; i < shape.size(); ++i) steps_.push_back(shape[i] == 1 ? 0 : dense[i]);
    if (tokens_first) std::swap(steps_[1], steps_[2]);
  }

  // The offset of matrix number i of `batch`.
  ptrdiff_t offset(const std::vector<int64_t>& batch, int64_t i) const {
    ptrdiff_t at = 0;
    for (size_t axis = batch.size(); axis-- > 0; i /= batch[axis]) at += i % batch[axis] * steps_[axis];
    return at;
  }
  ptrdiff_t row() const { return steps_[steps_.size() - 2]; }
  ptrdiff_t column() const { return steps_.back(); }

 private:
  std::vector<int64_t> steps_;
};

// One use. Its work is cut into heads, and these into parts of their queries, by shape alone.
class Plan {
 public:
  // `first`: the position of query among the inputs.
  Plan(const Use& use, size_t first) : first_(first), tokens_first_(use.name.rfind("x86::", 0) == 0) {
    const Type& result = first ? use.inputs[0] : use.outputs[0];
    const size_t ndim = result.shape.size();
    auto matrix = [&](const Type& type) {  // its rows and columns
      return std::pair(type.shape[type.shape.size() - (tokens_first_ ? 3 : 2)], type.shape.back());
    };
    std::tie(head_.queries, head_.width) = matrix(use.inputs[first]);
    std::tie(head_.keys, head_.depth) = matrix(use.inputs[first + 2]);
    if (tokens_first_)
      batch_ = {result.shape[0], result.shape[2]};
    else
      batch_.assign(result.shape.begin(), result.shape.end() - 2);
    for (int64_t n : batch_) heads *= n;
    for (const Type& type : use.inputs) in_.emplace_back(type.shape, ndim, tokens_first_ && in_.size() < first + 3);
    for (const Type& type : use.outputs) out_.emplace_back(type.shape, ndim, tokens_first_);
    const double width = static_cast<double>(std::max<int64_t>(1, head_.width));
    head_.scale = static_cast<float>(use.number("scale", 1 / std::sqrt(width)));
    head_.causal = use.flag("is_causal");
    bool_mask_ = use.inputs.size() > first + 3 && use.inputs[first + 3].dtype == dtype_of<bool>();

    const int64_t least = first ? 64 : 4 * kRows;  // queries for which it pays to pack the keys
    const int64_t wanted = (kUnits + heads - 1) / std::max<int64_t>(1, heads);
    parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, head_.queries / least));
    const int64_t each = head_.queries * head_.keys * (head_.width + head_.depth) / parts;
    grain = std::max<int64_t>(1, Cut::kLeast / 4 / std::max<int64_t>(1, each));
  }

  Head head(const Run& run, int64_t i) const {
    Head h = head_;
    h.q = in(run, first_, i), h.k = in(run, first_ + 1, i), h.v = in(run, first_ + 2, i);
    if (const size_t at = first_ + 3; in_.size() > at) {
      const ptrdiff_t offset = in_[at].offset(batch_, i);
      if (bool_mask_)
        h.mask.seen = run.in<uint8_t>(at) + offset;
      else
        h.mask.added = run.in<float>(at) + offset;
      h.mask.row = in_[at].row(), h.mask.column = in_[at].column();
    }
    return h;
  }
  const Head& shape() const { return head_; }
  RowsOf<const float> in(const Run& run, size_t at, int64_t i) const {
    return {run.in<float>(at) + in_[at].offset(batch_, i), in_[at].row()};
  }
  RowsOf<float> out(const Run& run, size_t at, int64_t i) const {
    return {run.out<float>(at) + out_[at].offset(batch_, i), out_[at].row()};
  }
  // Whole tiles.
  int64_t first_query(int64_t part) const {
    return std::min(head_.queries, tile_count(head_.queries) * part / parts * kRows);
  }

  int64_t heads = 1, parts, grain;

 private:
  static constexpr int64_t kUnits = 6;
  size_t first_;
  bool tokens_first_, bool_mask_;
  Head head_{};
  std::vector<int64_t> batch_;
  std::vector<Matrices> in_, out_;
};

int64_t scratch_floats(const Plan& plan, bool backward) {
  const int64_t queries = (tile_count(plan.shape().queries) / plan.parts + 1) * kRows;  // of a part, at most
  const Head& h = plan.shape();
  return round_up(backward ? attention::backward_floats(h) : attention::forward_floats(h, queries), 16);
}
// dk and dv of each part but the first.
int64_t partial_floats(const Plan& plan) {
  const Head& h = plan.shape();
  return round_up(plan.heads * (plan.parts - 1) * h.keys * (h.width + h.depth), 16);
}

Function forward(const Use& use) {
  return [plan = Plan(use, 0)](const Run& run) {
    const int64_t scratch = scratch_floats(plan, false);
    parallel_for(plan.heads * plan.parts, plan.grain, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / plan.parts, part = i % plan.parts;
        attention::forward(plan.head(run, at), plan.first_query(part), plan.first_query(part + 1), plan.out(run, 0, at),
                           static_cast<float*>(run.workspace) + worker * scratch);
      }
    });
  };
}

Function backward(const Use& use) {
  return [plan = Plan(use, 1)](const Run& run) {
    const Head& shape = plan.shape();
    const int64_t scratch = scratch_floats(plan, true), more = plan.parts - 1;
    float *partial = static_cast<float*>(run.workspace), *workspace = partial + partial_floats(plan);
    auto partial_keys = [&](int64_t head, int64_t part) {
      return RowsOf<float>{partial + (head * more + part - 1) * shape.keys * (shape.width + shape.depth), shape.width};
    };
    auto partial_values = [&](int64_t head, int64_t part) {
      return RowsOf<float>{partial_keys(head, part)[shape.keys], shape.depth};
    };
    parallel_for(plan.heads * plan.parts, plan.grain, [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / plan.parts, part = i % plan.parts;
        attention::backward(plan.head(run, at), plan.in(run, 0, at), plan.first_query(part), plan.first_query(part + 1),
                            plan.out(run, 0, at), part ? partial_keys(at, part) : plan.out(run, 1, at),
                            part ? partial_values(at, part) : plan.out(run, 2, at), workspace + worker * scratch);
      }
    });
    if (!more) return;
    parallel_for(plan.heads * shape.keys, 256, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / shape.keys, row = i % shape.keys;
        float *dk = plan.out(run, 1, at)[row], *dv = plan.out(run, 2, at)[row];
        for (int64_t part = 1; part < plan.parts; ++part) {
          const float *k = partial_keys(at, part)[row], *v = partial_values(at, part)[row];
          for (int64_t j = 0; j < shape.width; ++j) dk[j] += k[j];
          for (int64_t j = 0; j < shape.depth; ++j) dv[j] += v[j];
        }
      }
    });
  };
}

template <bool backward>
uint64_t bytes(const Use& use) {
  const Plan plan(use, backward);
  const int64_t partial = backward ? partial_floats(plan) : 0;
  return 4 * static_cast<uint64_t>(partial + scratch_floats(plan, backward) * mge_host->thread_count);
}

// Queries are read before dq is written; keys and values are packed before dk and dv are, by the one part of a head.
std::vector<MgeInplacePair> over_inputs(const Use& use) {
  if (Plan(use, 1).parts > 1) return {{1, 0}};
  return {{1, 0}, {2, 1}, {3, 2}};
}

}  // namespace

void add_attention(Kernels& kernels) {
  for (const char* op : {"attention", "x86::attention"}) kernels.prepared<float>(op, forward).workspace(bytes<false>);
  for (const char* op : {"attention_backward", "x86::attention_backward"})
    kernels.prepared<float>(op, backward).workspace(bytes<true>).inplace_of(over_inputs);
  also_halves(kernels, {"attention", "attention_backward"});
}
