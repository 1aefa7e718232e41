// A backend for tests: what the executor and the glue must get right, and what goes wrong on purpose.
#include <cmath>

#include "mge/kernel.hpp"

namespace {

std::string describe(const mge::Use& use) {  // "refused" with everything that arrived, for op `pad`-like uses
  std::string text = use.name + " " + std::to_string(use.inputs.size());
  for (int64_t n : use.integers("axis")) text += " axis " + std::to_string(n);
  text += use.flag("keepdims") ? " keepdims" : "";
  return text;
}

mge::Function elementwise(const mge::Use& use, float (*f)(float, float)) {
  int64_t count = use.outputs[0].size();
  return [count, f](const mge::Run& run) {
    const float *x = run.in<float>(0), *y = run.in<float>(1);
    float* z = run.out<float>(0);
    for (int64_t i = 0; i < count; ++i) z[i] = f(x[i], y[i]);
  };
}

std::string same_shapes(const mge::Use& use) {
  return use.inputs[0].shape == use.inputs[1].shape ? "" : "only equal shapes";
}

}  // namespace

MGE_BACKEND("probe", "Probe Ltd.", "1.2.3") {
  kernels
      .prepared<float>("add", [](const mge::Use& u) { return elementwise(u, [](float x, float y) { return x + y; }); })
      .unless(same_shapes).inplace(0).inplace(1);
  // Through its workspace, so that a wrong one shows.
  kernels.prepared<float>("mul", [](const mge::Use& use) -> mge::Function {
    int64_t count = use.outputs[0].size();
    return [count](const mge::Run& run) {
      float* scratch = static_cast<float*>(run.workspace);
      if (reinterpret_cast<uintptr_t>(scratch) % 64) throw std::runtime_error("the workspace is not aligned");
      for (int64_t i = 0; i < count; ++i) scratch[i] = run.in<float>(0)[i];
      for (int64_t i = 0; i < count; ++i) run.out<float>(0)[i] = scratch[i] * run.in<float>(1)[i];
    };
  }).unless(same_shapes).workspace([](const mge::Use& use) { return 4 * use.outputs[0].size(); });
  // Fails by value: 1 plain, 2 index, 3 memory, 4 argument, 5 "unsupported".
  kernels.prepared<float>("neg", [](const mge::Use& use) -> mge::Function {
    int64_t count = use.outputs[0].size();
    return [count](const mge::Run& run) {
      const float* x = run.in<float>(0);
      for (int64_t i = 0; i < count; ++i) {
        if (x[i] == 1001) throw std::runtime_error("the value is 1001");
        if (x[i] == 1002) throw mge::Failure(MGE_INDEX_RANGE, "index 1002 is out of range");
        if (x[i] == 1003) throw std::bad_alloc();
        if (x[i] == 1004) throw mge::Failure(MGE_BAD_ARGUMENT, "1004 is no argument");
        if (x[i] == 1005) throw mge::Failure(MGE_UNSUPPORTED, "not 1005");
        if (x[i] == 1006) throw 7;
        run.out<float>(0)[i] = -x[i];
      }
    };
  }).inplace(0);
  // Refuses with what it was told.
  kernels.add<float>("sum", [](const mge::Run&) {}).unless(describe);
  // In parallel: the sum of each chunk, then the chunks in order, so that bits do not depend on threads.
  kernels.prepared<float>("exp", [](const mge::Use& use) -> mge::Function {
    int64_t count = use.outputs[0].size();
    return [count](const mge::Run& run) {
      const float* x = run.in<float>(0);
      float* y = run.out<float>(0);
      mge::parallel_for(count, 64, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (x[i] > 1000) throw std::runtime_error("too large");
          y[i] = std::exp(x[i]);
        }
      });
    };
  });
}
