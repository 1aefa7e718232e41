// x86::chain: a loop of elementwise steps and reductions, in place of many ops (mge/cpu/chain.hpp).

#include "mge/cpu/chain.hpp"

#include <memory>

void add_chain(mge::Kernels& kernels) {
  const auto refusal = [](const mge::Use& use) -> std::string {
    try {
      mge::cpu::Chain(use.text("program"));
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  const auto workspace = [](const mge::Use& use) {
    return static_cast<uint64_t>(mge::cpu::Chain(use.text("program")).scratch()) * sizeof(float) *
           static_cast<uint64_t>(mge_host->thread_count);
  };
  const auto make = [](const mge::Use& use) -> mge::Function {
    auto chain = std::make_shared<mge::cpu::Chain>(use.text("program"));
    return [chain](const mge::Run& run) {
      chain->run(run.inputs, run.outputs, static_cast<float*>(run.workspace), mge_host->thread_count);
    };
  };
  const auto pairs = [](const mge::Use& use) { return mge::cpu::Chain(use.text("program")).inplace(); };
  kernels.prepared<float>("x86::chain", make).unless(refusal).workspace(workspace).inplace_of(pairs);
  kernels.prepared<bool>("x86::chain", make).unless(refusal).workspace(workspace).inplace_of(pairs);
}
