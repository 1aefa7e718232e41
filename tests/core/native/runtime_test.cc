// Plans in C++: damaged files, wrong calls, and many runs. runtime_test PLAN LIBRARY OTHER_LIBRARY FOLDER
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <vector>

#include "mge/runtime.hpp"
#include "plan_file.hpp"

namespace {

using mge::runtime::Plan;
using Bytes = std::vector<uint8_t>;
int failures = 0;

void expect(bool is_true, const std::string& what) {
  if (!is_true) std::printf("FAILED %s\n", what.c_str()), ++failures;
}

// The text of the error that a call throws, or "".
std::string thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const mge::runtime::Error& error) {
    return error.what();
  }
  return "";
}

void refuses(const std::string& part, const std::function<void()>& call) {
  std::string text = thrown(call);
  expect(text.find(part) != std::string::npos, "'" + part + "' in '" + text + "'");
}

// 0: refused, 1: read. Each copy has its own end, so that a sanitizer sees a read past it.
int reads(const Bytes& bytes) {
  try {
    mge::PlanFile::read(bytes.data(), bytes.size());
    return 1;
  } catch (const mge::BadPlanFile& error) {
    if (!*error.what()) expect(false, "an error without a text");
    return 0;
  }
}

Bytes with_checksum(Bytes bytes) {
  uint32_t crc = mge::crc32(bytes.data() + 60, bytes.size() - 60, mge::crc32(bytes.data(), 56));
  std::memcpy(bytes.data() + 56, &crc, 4);
  return bytes;
}

void damaged_files(const Bytes& good) {
  expect(reads(good) == 1, "the file is read");
  expect(reads(with_checksum(good)) == 1, "the checksum is that of zlib");
  int wrong = 0, kept = 0;
  for (size_t size = 0; size < good.size(); ++size) wrong += reads(Bytes(good.begin(), good.begin() + size));
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit : {0, 3, 7}) {
      Bytes bytes = good;
      bytes[i] ^= static_cast<uint8_t>(1 << bit);
      wrong += reads(bytes);
    }
  expect(wrong == 0, std::to_string(wrong) + " damaged files were read");
  uint64_t record = 0, record_bytes = 0;
  std::memcpy(&record, good.data() + 24, 8), std::memcpy(&record_bytes, good.data() + 32, 8);
  for (size_t i = 8; i < record + record_bytes; ++i)  // past the checksum: each number is checked
    for (uint8_t value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      if (i >= 56 && i < 60) continue;
      Bytes bytes = good;
      bytes[i] = value;
      kept += reads(with_checksum(bytes));
    }
  for (size_t cut = 1; cut < record_bytes; ++cut) {  // a record that ends early, in a whole file
    Bytes bytes = good;
    uint64_t less = record_bytes - cut;
    std::memcpy(bytes.data() + 32, &less, 8);
    expect(reads(with_checksum(bytes)) == 0, "a record that ends early");
  }
  std::printf("%zu bytes, %d changed files are good too\n", good.size(), kept);
}

void write(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int, char** words) {
  const std::string path = words[1], library = words[2], other = words[3], folder = words[4];
  std::ifstream file(path, std::ios::binary);
  const Bytes good(std::istreambuf_iterator<char>(file), {});
  damaged_files(good);

  refuses("No such file", [&] { Plan::load(folder + "/none.mgeplan", library); });
  refuses("none.so", [&] { Plan::load(path, folder + "/none.so"); });
  refuses("it was compiled for toy_native; ", [&] { Plan::load(path, other); });
  write(folder + "/cut.mgeplan", Bytes(good.begin(), good.end() - 7));
  refuses("cut.mgeplan: it has", [&] { Plan::load(folder + "/cut.mgeplan", library); });
  write(folder + "/text.mgeplan", Bytes(100, 'x'));
  refuses("it is no plan of mge compile", [&] { Plan::load(folder + "/text.mgeplan", library); });
  Bytes changed = good;
  changed[good.size() / 2] ^= 4;
  write(folder + "/changed.mgeplan", changed);
  refuses("checksum", [&] { Plan::load(folder + "/changed.mgeplan", library); });
  changed = good;
  changed[8] = 2;
  write(folder + "/newer.mgeplan", changed);
  refuses("it has version 2 of the format", [&] { Plan::load(folder + "/newer.mgeplan", library); });
  mge::runtime::Options third;
  third.device = 3;
  refuses("toy_native:3 is not here", [&] { Plan::load(path, library, third); });

  Plan plan = Plan::load(path, library);
  auto inputs = plan.inputs();
  auto outputs = plan.outputs();
  std::vector<Bytes> x, y;
  for (const auto& port : inputs) x.emplace_back(port.nbytes, uint8_t(0));
  for (const auto& port : outputs) y.emplace_back(port.nbytes);
  std::vector<mge::runtime::Input> in(x.begin(), x.end());
  std::vector<mge::runtime::Output> out(y.begin(), y.end());
  refuses("run: the inputs have no bytes; the plan takes " + inputs[0].name, [&] { plan.run({}, out); });
  refuses("output", [&] { plan.run(in, {}); });
  refuses("batch 77", [&] { plan.inputs(77); });
  refuses("state nobody: ", [&] { plan.read_state("nobody", x[0]); });
  refuses("is NULL", [&] {
    auto none = in;
    none[0].data = nullptr;
    plan.run(none, out);
  });
  expect(plan.profile().empty(), "no profile yet");
  for (int i = 0; i < 1000; ++i) plan.run(in, out);
  plan.set_profiling(true);
  plan.run(in, out);
  auto steps = plan.profile();
  expect(!steps.empty() && steps[0].ns >= 0 && !steps[0].op.empty(), "a profile");
  for (const auto& state : plan.states()) {  // written, read again
    Bytes value(state.nbytes, uint8_t(7)), again(state.nbytes);
    plan.write_state(state.name, value);
    plan.read_state(state.name, again);
    expect(value == again, "state " + state.name);
  }
  Plan second = std::move(plan);
  second.run(in, out);
  if (!failures) std::printf("good\n");
  return failures != 0;
}
