// x86::chain: a loop of elementwise steps and reductions, in place of many ops (mge/cpu/chain.hpp).

#include "mge/cpu/chain.hpp"

#include <algorithm>
#include <memory>

namespace {

using mge::cpu::Chain;

// The loop of a use. The last one is kept: what a kernel is asked before it is made is answered by one reading.
std::shared_ptr<const Chain> chain_of(const mge::Use& use) {
  thread_local std::pair<std::string, std::shared_ptr<const Chain>> last;
  const std::string text = use.text("program");
  if (!last.second || last.first != text) last = {text, std::make_shared<const Chain>(text)};
  return last.second;
}

}  // namespace

void add_chain(mge::Kernels& kernels) {
  const auto refusal = [](const mge::Use& use) -> std::string {
    try {
      chain_of(use);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  const auto workspace = [](const mge::Use& use) {
    return static_cast<uint64_t>(chain_of(use)->scratch()) * sizeof(float) *
           static_cast<uint64_t>(mge_host->thread_count);
  };
  const auto make = [](const mge::Use& use) -> mge::Function {
    return [chain = chain_of(use)](const mge::Run& run) {
      chain->run(run.inputs, run.outputs, static_cast<float*>(run.workspace), mge_host->thread_count);
    };
  };
  const auto pairs = [](const mge::Use& use) { return chain_of(use)->inplace(); };
  const auto title = [](const mge::Use& use) {
    const std::string text = use.text("program");
    return "x86::chain " + std::to_string(std::count(text.begin(), text.end(), '=')) + " steps";
  };
  kernels.prepared<float>("x86::chain", make).unless(refusal).workspace(workspace).inplace_of(pairs).named(title);
  kernels.prepared<bool>("x86::chain", make).unless(refusal).workspace(workspace).inplace_of(pairs).named(title);
}
