#include "plan_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

namespace mge {
namespace {

constexpr char MAGIC[8] = {'M', 'G', 'E', 'P', 'L', 'A', 'N', 0};
constexpr uint32_t VERSION = 1;
constexpr size_t HEADER = 64, CRC_AT = 56;
constexpr uint64_t LARGEST = uint64_t(1) << 48;  // bytes of a value, an arena, a file
constexpr int32_t MAX_NDIM = 64;
constexpr uint32_t MAX_STREAM = 255;

[[noreturn]] void bad(const std::string& text) { throw BadPlanFile(text); }

void need(bool is_true, const char* text) {
  if (!is_true) bad(std::string("its parts do not fit together: ") + text);
}

using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables() {
  Tables made{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
    made[0][i] = c;
  }
  for (size_t t = 1; t < 8; ++t)
    for (uint32_t i = 0; i < 256; ++i) made[t][i] = (made[t - 1][i] >> 8) ^ made[0][made[t - 1][i] & 255];
  return made;
}

template <class T>
T number_at(const uint8_t* at) {  // hosts are little-endian
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// Reads the record from front to back; never past its end.
class Reader {
 public:
  Reader(const uint8_t* at, size_t nbytes) : at_(at), end_(at + nbytes) {}

  template <class T>
  T number() {
    return number_at<T>(take(sizeof(T)));
  }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  std::string text() {
    uint32_t count = u32();
    return std::string(reinterpret_cast<const char*>(take(count)), count);
  }
  // A list whose items take at least `least` bytes each: a wrong count asks for no memory.
  template <class F>
  auto list(size_t least, F&& item) {
    uint32_t count = u32();
    if (count > static_cast<size_t>(end_ - at_) / least) bad("its record ends early");
    std::vector<decltype(item())> made;
    made.reserve(count);
    for (uint32_t i = 0; i < count; ++i) made.push_back(item());
    return made;
  }
  std::vector<uint32_t> numbers() {
    return list(4, [this] { return u32(); });
  }
  bool flag() {
    uint8_t value = number<uint8_t>();
    need(value <= 1, "a flag is neither 0 nor 1");
    return value == 1;
  }
  bool is_done() const { return at_ == end_; }

 private:
  const uint8_t* take(size_t count) {
    if (count > static_cast<size_t>(end_ - at_)) bad("its record ends early");
    const uint8_t* found = at_;
    at_ += count;
    return found;
  }
  const uint8_t *at_, *end_;
};

MgeDataType read_dtype(Reader& from) {
  MgeDataType dtype{from.number<uint8_t>(), from.number<uint8_t>(), 1};
  bool known = dtype.code <= MGE_FLOAT || dtype.code == MGE_BFLOAT || dtype.code == MGE_BOOL;
  need(known && (dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64), "an unknown dtype");
  return dtype;
}

PlanFile::Type read_type(Reader& from) {
  PlanFile::Type type{read_dtype(from), {}, 0};
  type.shape = from.list(8, [&] { return from.number<int64_t>(); });
  need(type.shape.size() <= MAX_NDIM, "a shape has too many axes");
  uint64_t size = type.dtype.bits / 8;
  for (int64_t n : type.shape) {
    need(n >= 0 && static_cast<uint64_t>(n) <= LARGEST, "an axis has an impossible length");
    if (n && size > LARGEST / static_cast<uint64_t>(n)) bad("its parts do not fit together: a value is too large");
    size *= static_cast<uint64_t>(n);
  }
  type.nbytes = size;
  return type;
}

PlanFile::Port read_port(Reader& from) {
  std::string name = from.text();
  return {name, read_type(from)};
}

PlanFile::Attr read_attr(Reader& from) {
  PlanFile::Attr attr;
  attr.name = from.text();
  attr.kind = from.u32();
  switch (attr.kind) {
    case MGE_ATTR_NONE: break;
    case MGE_ATTR_INT: attr.i = from.number<int64_t>(); break;
    case MGE_ATTR_BOOL: attr.i = from.flag(); break;
    case MGE_ATTR_FLOAT: attr.f = from.number<double>(); break;
    case MGE_ATTR_STRING:
    case MGE_ATTR_BYTES: attr.text = from.text(); break;
    case MGE_ATTR_DTYPE: attr.dtype = read_dtype(from); break;
    case MGE_ATTR_INTS:
    case MGE_ATTR_BOOLS: attr.ints = from.list(8, [&] { return from.number<int64_t>(); }); break;
    case MGE_ATTR_FLOATS: attr.floats = from.list(8, [&] { return from.number<double>(); }); break;
    case MGE_ATTR_STRINGS: attr.strings = from.list(4, [&] { return from.text(); }); break;
    case MGE_ATTR_DTYPES: attr.dtypes = from.list(2, [&] { return read_dtype(from); }); break;
    default: need(false, "an attribute of unknown kind");
  }
  return attr;
}

PlanFile::Storage read_storage(Reader& from) {
  uint8_t kind = from.number<uint8_t>();
  need(kind <= PlanFile::STATE, "a storage of unknown kind");
  uint64_t at = from.u64(), nbytes = from.u64();
  need(nbytes <= LARGEST && at <= LARGEST, "a storage is too large");
  return {static_cast<PlanFile::Kind>(kind), at, nbytes};
}

PlanFile::Step read_step(Reader& from) {
  PlanFile::Step step;
  step.op = from.text();
  step.kernel = from.text();
  step.flags = from.u32();
  step.attrs = from.list(8, [&] { return read_attr(from); });
  step.inputs = from.numbers();
  step.outputs = from.numbers();
  step.stream = from.u32();
  step.waits = from.numbers();
  step.records = from.flag();
  return step;
}

PlanFile::Program read_program(Reader& from) {
  PlanFile::Program made;
  made.batch = from.number<int64_t>();
  made.inputs = from.list(10, [&] { return read_port(from); });
  made.arena_bytes = from.u64();
  made.result_count = from.u32();
  made.storages = from.list(17, [&] { return read_storage(from); });
  made.values = from.list(10, [&] {
    PlanFile::Type type = read_type(from);
    return PlanFile::Value{std::move(type), from.u32()};
  });
  made.steps = from.list(33, [&] { return read_step(from); });
  made.outputs = from.list(8, [&] {
    std::string name = from.text();
    return PlanFile::Output{std::move(name), from.u32()};
  });
  made.updates = from.list(8, [&] {
    uint32_t state = from.u32();
    return PlanFile::Update{state, from.u32()};
  });
  return made;
}

bool are_equal(const PlanFile::Type& a, const PlanFile::Type& b) {
  return a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits && a.shape == b.shape;
}

void check_storages(const PlanFile& file, const PlanFile::Program& program) {
  need(program.arena_bytes <= LARGEST, "the arena is too large");
  need(program.result_count <= program.storages.size(), "a result has no storage");
  std::vector<bool> seen(program.result_count, false);
  for (const PlanFile::Storage& s : program.storages) {
    switch (s.kind) {
      case PlanFile::ARENA:
        need(s.at % 64 == 0 && s.at <= program.arena_bytes && s.nbytes <= program.arena_bytes - s.at,
             "a value lies outside the arena");
        break;
      case PlanFile::CONSTANT:
        need(s.at < file.blocks.size() && s.nbytes <= file.blocks[s.at].nbytes, "a constant is not in the data");
        break;
      case PlanFile::INPUT:
        need(s.at < program.inputs.size() && s.nbytes <= program.inputs[s.at].type.nbytes, "an unknown input");
        break;
      case PlanFile::RESULT:
        need(s.at < program.result_count && !seen[s.at], "an unknown result, or one given twice");
        seen[s.at] = true;
        break;
      case PlanFile::STATE:
        need(s.at < file.states.size() && s.nbytes <= file.states[s.at].port.type.nbytes, "an unknown state");
        break;
    }
  }
  need(std::find(seen.begin(), seen.end(), false) == seen.end(), "a result has no storage");
  for (const PlanFile::Value& value : program.values)
    need(value.storage < program.storages.size() && value.type.nbytes <= program.storages[value.storage].nbytes,
         "a value has no storage, or one that is too small");
}

void check_program(const PlanFile& file, const PlanFile::Program& program) {
  check_storages(file, program);
  const size_t values = program.values.size();
  std::vector<bool> is_there(program.storages.size());  // holds something by now
  for (size_t s = 0; s < is_there.size(); ++s)
    is_there[s] = program.storages[s].kind != PlanFile::ARENA && program.storages[s].kind != PlanFile::RESULT;
  auto read = [&](uint32_t v) {
    need(v < values, "an unknown value");
    const PlanFile::Value& value = program.values[v];
    need(!value.type.nbytes || is_there[value.storage], "a value is read before it is written");
  };
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const PlanFile::Step& step = program.steps[i];
    need(!step.op.empty() && step.stream <= MAX_STREAM, "a step without an op, or on an impossible stream");
    for (uint32_t v : step.inputs) read(v);
    for (uint32_t w : step.waits) need(w < i && program.steps[w].records, "a step waits for one that does not come");
    for (uint32_t v : step.outputs) {
      need(v < values, "an unknown value");
      uint32_t s = program.values[v].storage;
      PlanFile::Kind kind = program.storages[s].kind;
      need(kind == PlanFile::ARENA || kind == PlanFile::RESULT || !program.values[v].type.nbytes,
           "a step writes over a constant, an input or a state");
      is_there[s] = true;
    }
  }
  for (const PlanFile::Output& output : program.outputs) read(output.value);
  std::set<uint32_t> updated;
  for (const PlanFile::Update& update : program.updates) {
    read(update.value);
    need(update.state < file.states.size() && updated.insert(update.state).second, "an unknown state");
    need(are_equal(program.values[update.value].type, file.states[update.state].port.type),
         "a state is updated with a value of another type");
  }
}

}  // namespace

uint32_t crc32(const void* data, size_t nbytes, uint32_t crc) {
  static const Tables t = make_tables();
  const uint8_t* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; nbytes >= 8; nbytes -= 8, p += 8) {
    uint32_t low = number_at<uint32_t>(p) ^ crc, high = number_at<uint32_t>(p + 4);
    crc = t[7][low & 255] ^ t[6][low >> 8 & 255] ^ t[5][low >> 16 & 255] ^ t[4][low >> 24] ^ t[3][high & 255] ^
          t[2][high >> 8 & 255] ^ t[1][high >> 16 & 255] ^ t[0][high >> 24];
  }
  for (; nbytes; --nbytes) crc = t[0][(crc ^ *p++) & 255] ^ (crc >> 8);
  return ~crc;
}

PlanFile PlanFile::read(const uint8_t* bytes, size_t nbytes) {
  if (nbytes < sizeof MAGIC || memcmp(bytes, MAGIC, sizeof MAGIC) != 0) bad("it is no plan of mge compile");
  if (nbytes < HEADER) bad("it is cut off");
  uint32_t version = number_at<uint32_t>(bytes + 8);
  if (version != VERSION)
    bad("it has version " + std::to_string(version) + " of the format; this runtime reads version " +
        std::to_string(VERSION) + ": run mge compile again");
  uint64_t size = number_at<uint64_t>(bytes + 16), record_at = number_at<uint64_t>(bytes + 24),
           record_bytes = number_at<uint64_t>(bytes + 32), data_at = number_at<uint64_t>(bytes + 40),
           data_bytes = number_at<uint64_t>(bytes + 48);
  if (size != nbytes)
    bad("it has " + std::to_string(nbytes) + " bytes and states " + std::to_string(size) + ": it is cut off or damaged");
  uint32_t crc = crc32(bytes + CRC_AT + 4, nbytes - CRC_AT - 4, crc32(bytes, CRC_AT));
  if (crc != number_at<uint32_t>(bytes + CRC_AT))
    bad("its contents do not give the checksum that it states: it was damaged after it was written");
  auto inside = [&](uint64_t at, uint64_t count) { return at >= HEADER && at <= nbytes && count <= nbytes - at; };
  need(inside(record_at, record_bytes) && inside(data_at, data_bytes) && data_at % 64 == 0, "record or data");

  Reader from(bytes + record_at, record_bytes);
  PlanFile file;
  file.data_at = data_at;
  file.core = from.text();
  file.backend = from.text();
  file.vendor = from.text();
  file.backend_version = from.text();
  file.abi_major = from.u32();
  file.abi_minor = from.u32();
  file.device = from.number<int32_t>();
  need(file.device >= 0, "a negative device");
  file.blocks = from.list(16, [&] {
    Block block{from.u64(), 0};
    block.nbytes = from.u64();
    need(block.at % 64 == 0 && block.at <= data_bytes && block.nbytes <= data_bytes - block.at,
         "a constant lies outside the data");
    return block;
  });
  file.states = from.list(14, [&] {
    Port port = read_port(from);
    State state{std::move(port), from.u32()};
    need(state.block < file.blocks.size() && file.blocks[state.block].nbytes == state.port.type.nbytes,
         "a state's first value has another size");
    return state;
  });
  file.programs = from.list(32, [&] { return read_program(from); });
  need(from.is_done() && !file.programs.empty(), "the record");
  for (const Program& program : file.programs) check_program(file, program);
  return file;
}

}  // namespace mge
