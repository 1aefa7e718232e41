// mge/cpu/chain.hpp: the interpreter of loops: a chain of elementwise steps and reductions along rows, block by block.
//
// In: the text of a loop (its language is in mge_x86/loops.py). Out: `Chain`, which runs it over memory.
// After chain_steps.hpp.
//
// A block is so small that its values stay in the first cache: some whole rows, or a piece of one. For each block every
// step runs over vectors; what one step leaves, the next finds in the cache. Memory is read and written once.
#ifndef MGE_CPU_CHAIN_HPP
#define MGE_CPU_CHAIN_HPP

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "mge/cpu/chain_steps.hpp"

namespace mge::cpu {

class Chain {
 public:
  explicit Chain(const std::string& text) {
    read(text);
    choose_block();
    place_values();
  }

  // Floats of scratch that one thread needs.
  int64_t scratch() const { return columns_ + slots_ * block(); }

  // The outputs that may be written over an input: nothing reads it after the step that writes them.
  std::vector<MgeInplacePair> inplace() const {
    std::vector<MgeInplacePair> pairs;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Value& result = values_[steps_[i].result];
      if (result.home != kOutput || result.kind != kFull || result.is_bool) continue;
      for (int64_t input = 0; input < input_count_; ++input)
        if (last_read(input) <= static_cast<int>(i))
          pairs.push_back({static_cast<uint32_t>(input), static_cast<uint32_t>(result.index)});
    }
    return pairs;
  }

  // Runs it. `scratch` holds as many floats as scratch() says, for each of `workers` threads.
  void run(const MgeTensor* const* inputs, MgeTensor* const* outputs, float* scratch, int workers) const {
    if (!rows_ || !width_) return;
    const int64_t column_blocks = ceil_div(width_, block_columns_);
    const int64_t count = ceil_div(rows_, block_rows_) * column_blocks;
    const int64_t cost = std::max<int64_t>(1, block() * static_cast<int64_t>(steps_.size()) / 8);  // ns, about
    const int64_t grain = std::max<int64_t>(1, std::min(20000 / cost, ceil_div(count, workers)));
    mge::parallel_for(count, grain, [&](int64_t begin, int64_t end, int32_t worker) {
      float* mine = scratch + worker * this->scratch();
      repeat_columns(inputs, mine);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / column_blocks * block_rows_, column = i % column_blocks * block_columns_;
        run_block(inputs, outputs, mine, row, std::min(block_rows_, rows_ - row), column,
                  std::min(block_columns_, width_ - column));
      }
    });
  }

 private:
  enum Kind { kFull, kRow, kColumn, kScalar };
  enum Home { kInput, kOutput, kSlot, kColumns, kConstant };

  struct Value {
    Kind kind;
    Home home;
    int64_t index;  // of the input, output or slot; where it lies among repeated columns; of the constant
    bool is_bool;
  };
  struct Step {
    std::string name;
    ChainStep run;
    std::vector<int> operands;  // values
    int result;
    bool by_rows;  // each row by itself: reductions, and a row's number for each of its elements
  };

  struct Store {
    int value;
    bool is_bool;
  };

  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
  int64_t block() const { return block_rows_ * block_columns_; }

  // ---- Reading ----

  void read(const std::string& text) {
    std::istringstream lines(text);
    std::string line, word, cross;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      if (!(words >> word)) continue;
      if (word == "loop") {
        words >> rows_ >> cross >> width_;
      } else if (word == "store") {
        while (std::getline(words, word, ',')) {
          std::istringstream one(word);
          std::string name, dtype;
          one >> name >> dtype;
          stores_.push_back({values_at(name), dtype == "bool"});
        }
      } else if (word[0] == 'x') {
        std::string kind, dtype;
        words >> kind >> dtype;
        static const std::map<std::string, Kind> kinds = {
            {"full", kFull}, {"row", kRow}, {"column", kColumn}, {"scalar", kScalar}};
        const int value = add({kinds.at(kind), kInput, input_count_, dtype == "bool"});
        if (dtype == "bool" && kind != "full") throw Failure(MGE_UNSUPPORTED, "loop: truth values of kind " + kind);
        names_[word] = dtype == "bool" ? step("from_bool", {value}) : value;
        ++input_count_;
      } else {
        std::string equals, op, operand;
        std::vector<int> operands;
        words >> equals >> op;
        while (words >> operand) operands.push_back(values_at(operand));
        names_[word] = step(op, operands);
      }
    }
    join_steps();
  }

  int add(Value value) {
    values_.push_back(value);
    return static_cast<int>(values_.size()) - 1;
  }

  int values_at(const std::string& name) {
    auto found = names_.find(name);
    if (found != names_.end()) return found->second;
    char* end;
    const float number = std::strtof(name.c_str(), &end);
    if (name.empty() || *end) throw Failure(MGE_BAD_ARGUMENT, "loop: there is no value " + name);
    constants_.push_back(number);
    return names_[name] = add({kScalar, kConstant, static_cast<int64_t>(constants_.size()) - 1, false});
  }

  int step(const std::string& name, const std::vector<int>& operands) {
    const bool reduces = is_reduction(name);
    bool full = false, row = false, column = false;
    for (int v : operands) {
      full |= values_[v].kind == kFull;
      row |= values_[v].kind == kRow;
      column |= values_[v].kind == kColumn;
    }
    if (reduces && !full && !column) throw Failure(MGE_BAD_ARGUMENT, "loop: " + name + " of one number a row");
    const Kind kind = reduces ? kRow : full || column ? kFull : row ? kRow : kScalar;
    const int result = add({kind, kSlot, -1, false});
    steps_.push_back({name, nullptr, operands, result, reduces});
    return result;
  }

  // Two steps of which the second alone reads the first's value become one, where there is a function for both.
  void join_steps() {
    for (size_t i = 0; i + 1 < steps_.size(); ++i) {
      const int value = steps_[i].result;
      int readers = 0, reader = -1;
      for (size_t j = i + 1; j < steps_.size(); ++j)
        for (int v : steps_[j].operands)
          if (v == value) ++readers, reader = static_cast<int>(j);
      for (const Store& s : stores_) readers += s.value == value ? 2 : 0;
      if (readers != 1 || values_[value].kind != kFull) continue;
      Step &first = steps_[i], &second = steps_[reader];
      const bool left = second.operands[0] == value;
      const std::string name = joined_name(first.name, second.name, left);
      if (name.empty() || (!second.by_rows && values_[second.result].kind != kFull)) continue;
      std::vector<int> operands = first.operands;
      for (size_t k = 0; k < second.operands.size(); ++k)
        if (second.operands[k] != value) operands.push_back(second.operands[k]);
      second = {name, nullptr, operands, second.result, second.by_rows};
      steps_.erase(steps_.begin() + i--);
    }
  }

  // ---- Layout ----

  void choose_block() {
    bool reduces = false;
    for (const Step& s : steps_) reduces |= s.by_rows;
    if (reduces && !width_) throw Failure(MGE_UNSUPPORTED, "loop: rows of no elements");
    if (width_ > kFloats) {  // a piece of a row, but for reductions
      block_rows_ = 1, block_columns_ = reduces ? width_ : kFloats;
    } else {  // several short rows: then each step takes longer than its call
      const int64_t wanted = width_ >= kLongRow ? 1 : kFloats / std::max<int64_t>(width_, 1);
      block_rows_ = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(rows_, 1));
      block_columns_ = width_;
    }
  }

  void place_values() {
    for (Value& value : values_)  // columns, once for each row of a block
      if (value.kind == kColumn && block_rows_ > 1 && !value.is_bool && value.home == kInput) {
        repeated_.push_back({static_cast<int>(value.index), columns_});
        value = {kColumn, kColumns, columns_, false};
        columns_ += block();
      }
    std::vector<Step> placed;
    std::map<int, int> spread;  // a row's value -> the same for each element
    for (Step& s : steps_) {
      if (values_[s.result].kind == kFull && block_rows_ > 1)
        for (int& v : s.operands)
          if (values_[v].kind == kRow) {
            if (!spread.count(v)) {
              spread[v] = add({kFull, kSlot, -1, false});
              placed.push_back({"copy", nullptr, {v}, spread[v], true});
            }
            v = spread[v];
          }
      placed.push_back(s);
    }
    for (size_t k = 0; k < stores_.size(); ++k) {
      Store& s = stores_[k];
      if (values_[s.value].home == kSlot && !s.is_bool) {
        values_[s.value].home = kOutput, values_[s.value].index = static_cast<int64_t>(k);
      } else {
        const int out = add({values_[s.value].kind, kOutput, static_cast<int64_t>(k), s.is_bool});
        placed.push_back({s.is_bool ? "to_bool" : "copy", nullptr, {s.value}, out, false});
      }
    }
    steps_ = std::move(placed);
    give_slots();
    for (Step& s : steps_) s.run = find_step(s.name, s.operands.size(), scalars_of(s));
  }

  // Values that live at different times share a slot; a result may take that of an operand that ends there.
  void give_slots() {
    std::vector<int> last(values_.size(), -1), free;
    for (size_t i = 0; i < steps_.size(); ++i)
      for (int v : steps_[i].operands) last[v] = static_cast<int>(i);
    for (size_t i = 0; i < steps_.size(); ++i) {
      Step& s = steps_[i];
      if (!s.by_rows) release(s, i, last, &free);  // element by element: it may write over them
      Value& result = values_[s.result];
      if (result.home == kSlot) {
        if (free.empty()) free.push_back(static_cast<int>(slots_++));
        result.index = free.back(), free.pop_back();
      }
      if (s.by_rows) release(s, i, last, &free);
    }
  }

  void release(const Step& s, size_t i, std::vector<int>& last, std::vector<int>* free) {
    for (int v : s.operands)
      if (values_[v].home == kSlot && last[v] == static_cast<int>(i)) {
        free->push_back(static_cast<int>(values_[v].index));
        last[v] = -1;
      }
  }

  // One bit an operand that is a single number for the whole block.
  unsigned scalars_of(const Step& s) const {
    unsigned scalars = 0;
    const Kind kind = s.by_rows ? kFull : values_[s.result].kind;
    for (size_t k = 0; k < s.operands.size(); ++k) {
      const Kind mine = values_[s.operands[k]].kind;
      if (mine == kScalar ? kind != kScalar : mine == kRow && kind == kFull) scalars |= 1u << k;
    }
    return scalars;
  }

  // The last step that reads an input; one beyond all where it is no full matrix of floats.
  int last_read(int64_t input) const {
    int last = -1;
    for (size_t i = 0; i < steps_.size(); ++i)
      for (int v : steps_[i].operands) {
        const Value& value = values_[v];
        if (value.home != kInput || value.index != input) continue;
        last = value.kind == kFull && !value.is_bool ? static_cast<int>(i) : static_cast<int>(steps_.size());
      }
    const bool repeats = std::any_of(repeated_.begin(), repeated_.end(), [&](auto& r) { return r.first == input; });
    return repeats ? static_cast<int>(steps_.size()) : last;
  }

  // ---- Running ----

  void repeat_columns(const MgeTensor* const* inputs, float* scratch) const {
    for (const auto& [input, at] : repeated_)
      for (int64_t r = 0; r < block_rows_; ++r)
        std::memcpy(scratch + at + r * width_, inputs[input]->data, static_cast<size_t>(width_) * sizeof(float));
  }

  void run_block(const MgeTensor* const* inputs, MgeTensor* const* outputs, float* scratch, int64_t row, int64_t rows,
                 int64_t column, int64_t columns) const {
    for (const Step& s : steps_) {
      const float* operands[4];
      for (size_t k = 0; k < s.operands.size(); ++k)
        operands[k] = at(values_[s.operands[k]], inputs, outputs, scratch, row, column);
      float* result = const_cast<float*>(at(values_[s.result], inputs, outputs, scratch, row, column));
      const Kind kind = values_[s.result].kind;
      if (s.by_rows) {
        for (int64_t r = 0; r < rows; ++r) {
          const float* mine[4];
          for (size_t k = 0; k < s.operands.size(); ++k)
            mine[k] = operands[k] + r * row_stride(values_[s.operands[k]], columns);
          s.run(result + r * row_stride(values_[s.result], columns), mine, columns);
        }
      } else {
        s.run(result, operands, kind == kFull ? rows * columns : kind == kRow ? rows : 1);
      }
    }
  }

  static int64_t row_stride(const Value& value, int64_t columns) {
    return value.kind == kFull || value.home == kColumns ? columns : value.kind == kRow;
  }

  // Truth values are one byte each.
  static const float* at_offset(const Value& value, const void* data, int64_t offset) {
    const auto* bytes = static_cast<const char*>(data);
    return reinterpret_cast<const float*>(bytes + offset * (value.is_bool ? 1 : static_cast<int64_t>(sizeof(float))));
  }

  const float* at(const Value& value, const MgeTensor* const* inputs, MgeTensor* const* outputs, float* scratch,
                  int64_t row, int64_t column) const {
    const int64_t offset = value.kind == kFull     ? row * width_ + column
                           : value.kind == kRow    ? row
                           : value.kind == kColumn ? column
                                                   : 0;
    switch (value.home) {
      case kInput:
        return at_offset(value, inputs[value.index]->data, offset);
      case kOutput:
        return at_offset(value, outputs[value.index]->data, offset);
      case kSlot:
        return scratch + columns_ + value.index * block();
      case kColumns:
        return scratch + value.index;
      default:
        return &constants_[value.index];
    }
  }

  static constexpr int64_t kFloats = 2048;  // of one value of a block: 8 KiB
  static constexpr int64_t kLongRow = 256;

  int64_t rows_ = 0, width_ = 0, block_rows_ = 1, block_columns_ = 1;
  int64_t input_count_ = 0, columns_ = 0, slots_ = 0;
  std::map<std::string, int> names_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::vector<Store> stores_;
  std::vector<float> constants_;
  std::vector<std::pair<int, int64_t>> repeated_;  // (input, where its repeated columns lie)
};

}  // namespace mge::cpu

#endif  // MGE_CPU_CHAIN_HPP
