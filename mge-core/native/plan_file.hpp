// A plan file: what `mge compile` writes (mge/planfile.py), read and checked.
//
// In: the bytes of a file. Out: PlanFile, in which each number is within its range; else a text that says why not.
//
// Little-endian. 64 bytes of header: magic, version (u32), 0 (u32), sizes of file, record and data, where record
// and data begin (u64 each), CRC-32 of all other bytes (u32), 0 (u32). Data is at a multiple of 64, as each block in it.
#ifndef MGE_NATIVE_PLAN_FILE_HPP
#define MGE_NATIVE_PLAN_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "mge/plugin.h"

namespace mge {

struct BadPlanFile : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Same as crc32 of zlib; `crc` is that of the bytes before.
uint32_t crc32(const void* data, size_t nbytes, uint32_t crc = 0);

struct PlanFile {
  enum Kind : uint8_t { ARENA, CONSTANT, INPUT, RESULT, STATE };

  struct Type {
    MgeDataType dtype;
    std::vector<int64_t> shape;
    size_t nbytes;
  };
  struct Port {
    std::string name;
    Type type;
  };
  struct Block {
    uint64_t at, nbytes;  // in the data
  };
  struct State {
    Port port;
    uint32_t block;
  };
  struct Storage {
    Kind kind;
    uint64_t at;  // offset in the arena; number of the block, input, result or state
    uint64_t nbytes;
  };
  struct Value {
    Type type;
    uint32_t storage;
  };
  struct Attr {
    std::string name;
    uint32_t kind;
    int64_t i = 0;
    double f = 0;
    MgeDataType dtype{};
    std::string text;
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::vector<std::string> strings;
    std::vector<MgeDataType> dtypes;
  };
  struct Step {
    std::string op, kernel;  // the kernel's name when it was compiled
    uint32_t flags;
    std::vector<Attr> attrs;
    std::vector<uint32_t> inputs, outputs;  // values
    uint32_t stream;
    std::vector<uint32_t> waits;
    bool records;
  };
  struct Output {
    std::string name;
    uint32_t value;
  };
  struct Update {
    uint32_t state, value;
  };
  struct Program {  // for one batch size
    int64_t batch;
    std::vector<Port> inputs;
    uint64_t arena_bytes;
    uint32_t result_count;
    std::vector<Storage> storages;
    std::vector<Value> values;
    std::vector<Step> steps;
    std::vector<Output> outputs;
    std::vector<Update> updates;
  };

  std::string core, backend, vendor, backend_version;
  uint32_t abi_major, abi_minor;
  int32_t device;
  std::vector<Block> blocks;
  std::vector<State> states;
  std::vector<Program> programs;
  size_t data_at;

  // Throws BadPlanFile.
  static PlanFile read(const uint8_t* bytes, size_t nbytes);
};

}  // namespace mge

#endif
