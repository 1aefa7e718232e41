// Runs a compiled plan without Python: run_plan PLAN LIBRARY FOLDER [RUNS]
//
// In: FOLDER/<input>.bin, raw bytes of each input. Out: FOLDER/<output>.bin and FOLDER/<state>.bin after the last
// run, and the time of each step.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include "mge/runtime.hpp"

using Bytes = std::vector<char>;

static Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw mge::runtime::Error(path + ": it cannot be opened");
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

static void write(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()))) throw mge::runtime::Error(path);
}

static void run(const std::string& path, const std::string& library, const std::string& folder, int runs) {
  auto plan = mge::runtime::Plan::load(path, library);
  std::printf("%s on %s (%s)\n", path.c_str(), plan.device().name.c_str(), plan.device().version.c_str());

  std::vector<Bytes> inputs, outputs;
  for (const auto& port : plan.inputs()) inputs.push_back(read(folder + "/" + port.name + ".bin"));
  for (int64_t batch : plan.batches()) {  // the batch size that the first input is of
    if (!inputs.empty() && plan.inputs(batch)[0].nbytes != inputs[0].size()) continue;
    for (const auto& port : plan.outputs(batch)) outputs.emplace_back(port.nbytes);
    break;
  }
  for (int i = 0; i < runs; ++i) {
    plan.set_profiling(i + 1 == runs);
    plan.run({inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()});
  }
  for (const auto& step : plan.profile())
    std::printf("%8.1f us  %s (%s)\n", static_cast<double>(step.ns) / 1e3, step.op.c_str(), step.kernel.c_str());

  auto ports = plan.outputs();
  for (size_t i = 0; i < outputs.size(); ++i) write(folder + "/" + ports[i].name + ".bin", outputs[i]);
  for (const auto& state : plan.states()) {
    Bytes value(state.nbytes);
    plan.read_state(state.name, value);
    write(folder + "/" + state.name + ".bin", value);
  }
}

int main(int count, char** words) {
  if (count < 4) return std::fprintf(stderr, "run_plan PLAN LIBRARY FOLDER [RUNS]\n"), 2;
  try {
    run(words[1], words[2], words[3], count > 4 ? std::atoi(words[4]) : 1);
  } catch (const mge::runtime::Error& error) {
    return std::fprintf(stderr, "run_plan: %s\n", error.what()), 1;
  }
}
