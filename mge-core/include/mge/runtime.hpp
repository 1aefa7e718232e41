// mge/runtime.hpp: compiled plans in C++, without Python.
//
// In: a file that `mge compile` wrote, and the vendor's library. Out: results, state that runs update, times.
// CMake: find_package(mge_core 1.0 CONFIG REQUIRED), then link mge::runtime; it builds with your compiler.
//
//   auto plan = mge::runtime::Plan::load("net.mgeplan", "libmge_toy_native.so");
//   std::vector<float> x(8 * 784), y(8 * 10);
//   plan.run({x}, {y});
//
// All failures are exceptions of type mge::runtime::Error. A plan file names kernels and memory: its checksum
// finds damage and its parts are checked before use, but load only files from where you would load code.
#ifndef MGE_RUNTIME_HPP
#define MGE_RUNTIME_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mge::runtime {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One input, output or state: dense, row-major.
struct TensorInfo {
  std::string name;
  std::string dtype;  // "float32", "int32", "bfloat16", "bool", ...
  std::vector<int64_t> shape;
  size_t nbytes;
};

// Bytes that a run reads: any vector of plain elements, or an address and a size.
struct Input {
  const void* data;
  size_t nbytes;
  Input(const void* data, size_t nbytes) : data(data), nbytes(nbytes) {}
  template <class T>
  Input(const std::vector<T>& from) : data(from.data()), nbytes(from.size() * sizeof(T)) {}
};

// Bytes that a run writes.
struct Output {
  void* data;
  size_t nbytes;
  Output(void* data, size_t nbytes) : data(data), nbytes(nbytes) {}
  template <class T>
  Output(std::vector<T>& to) : data(to.data()), nbytes(to.size() * sizeof(T)) {}
};

struct StepTime {
  std::string op, kernel;  // the vendor's name of the kernel
  int64_t ns;
};

struct Options {
  int device = -1;          // index of the device; -1: as compiled
  int threads = 0;          // of kernels; 0: MGE_THREADS, or one a core. The first load of a process decides
  std::string tuning_file;  // where kernels keep what they tuned; "": in memory
};

struct Device {
  std::string name, library, vendor, version;  // as loaded: "toy_native:0"
  std::string compiled_version;                // of the library that the plan was compiled with
};

// One file, for one or several batch sizes, which share weights and state. Calls of one Plan wait for each other.
class Plan {
 public:
  // Reads and checks the file, loads the library, prepares all kernels.
  static Plan load(const std::string& path, const std::string& backend_library, const Options& options = {});
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  ~Plan();

  // The batch sizes of the file, in its order; 0 stands for the one of a model with fixed shapes.
  std::vector<int64_t> batches() const;
  // Of one batch size; by default of the first.
  std::vector<TensorInfo> inputs(int64_t batch = -1) const;
  std::vector<TensorInfo> outputs(int64_t batch = -1) const;
  const Device& device() const;

  // Runs the plan whose inputs have these sizes. Inputs are only read. Data that starts at a multiple of 64 bytes
  // is used in place, other data is copied. State is updated when all steps have succeeded, else not at all.
  void run(const std::vector<Input>& inputs, const std::vector<Output>& outputs);

  // What runs update: parameters in training, running statistics.
  std::vector<TensorInfo> states() const;
  void read_state(const std::string& name, Output to) const;
  void write_state(const std::string& name, Input from);

  // From the next run on, times are taken; each step is then waited for by itself.
  void set_profiling(bool on);
  // Of the last run with times, step by step.
  std::vector<StepTime> profile() const;

 private:
  struct Impl;
  explicit Plan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mge::runtime

#endif
