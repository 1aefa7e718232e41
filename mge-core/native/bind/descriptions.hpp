// Descriptions of types, ops and graphs, from Python to the contract in C.
//
// In: tuples and NumPy arrays. Out: `TypeHolder`, `OpHolder`, `GraphHolder`, which own what an MgeOp or MgeGraph
// points to.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_DESCRIPTIONS_HPP
#define MGE_NATIVE_BIND_DESCRIPTIONS_HPP

#include "common.hpp"

namespace mge {
namespace {

struct TypeHolder {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<MgeTensorType> types;
  std::vector<size_t> nbytes;

  explicit TypeHolder(const py::sequence& from) {  // (code, bits, shape) each
    for (py::handle item : from) {
      auto type = py::cast<py::tuple>(item);
      MgeDataType dtype{py::cast<uint8_t>(type[0]), py::cast<uint8_t>(type[1]), 1};
      shapes.push_back(py::cast<std::vector<int64_t>>(type[2]));
      size_t size = dtype.bits / 8;
      for (int64_t n : shapes.back()) size *= static_cast<size_t>(n);
      nbytes.push_back(size);
      types.push_back({dtype, static_cast<int32_t>(shapes.back().size()), nullptr});
    }
    for (size_t i = 0; i < types.size(); ++i) types[i].shape = shapes[i].data();
  }
  TypeHolder(const TypeHolder&) = delete;
  TypeHolder& operator=(const TypeHolder&) = delete;
};

class GraphHolder;

// An MgeOp with what it points to.
class OpHolder {
 public:
  // attrs: (name, kind, value) each, kind as MgeAttrKind. constants: an array or None for each input, or nothing.
  OpHolder(std::string name, const py::sequence& attrs, const py::sequence& inputs, const py::sequence& outputs,
           uint32_t flags, const py::sequence& constants)
      : inputs(inputs), outputs(outputs), name_(std::move(name)), kept_(constants), known_(constants.size()) {
    for (py::handle item : attrs) {
      auto attr = py::cast<py::tuple>(item);
      stores_.push_back(std::make_unique<Store>());
      add_attr(*stores_.back(), py::cast<std::string>(attr[0]), py::cast<uint32_t>(attr[1]), attr[2]);
    }
    op.struct_size = sizeof op;
    op.op_version = 1;
    op.name = name_.c_str();
    op.attrs = attrs_.data();
    op.inputs = this->inputs.types.data();
    op.outputs = this->outputs.types.data();
    op.attr_count = static_cast<uint32_t>(attrs_.size());
    op.input_count = static_cast<uint32_t>(this->inputs.types.size());
    op.output_count = static_cast<uint32_t>(this->outputs.types.size());
    op.flags = flags;
    for (size_t i = 0; i < known_.size(); ++i) {
      MgeTensor& tensor = known_[i];
      const MgeTensorType& type = this->inputs.types.at(i);
      tensor.device = {1, 0};
      tensor.ndim = type.ndim, tensor.dtype = type.dtype;
      tensor.shape = const_cast<int64_t*>(type.shape);
      py::object value = kept_[i];
      if (!value.is_none()) tensor.data = const_cast<void*>(py::cast<py::array>(value).data());
      constants_.push_back(value.is_none() ? nullptr : &tensor);
    }
    op.constants = constants_.empty() ? nullptr : constants_.data();
  }

  MgeOp op{};
  const TypeHolder inputs, outputs;

 private:
  struct Store {
    std::string name, text;
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::vector<std::string> strings;
    std::vector<const char*> pointers;
    std::vector<MgeDataType> dtypes;
    std::shared_ptr<GraphHolder> graph;
  };

  static MgeDataType dtype_of(py::handle pair) {
    auto codes = py::cast<std::pair<uint8_t, uint8_t>>(pair);
    return {codes.first, codes.second, 1};
  }
  void add_attr(Store& store, std::string name, uint32_t kind, py::handle value);

  const std::string name_;
  const py::sequence kept_;  // keeps the arrays alive
  std::vector<MgeTensor> known_;
  std::vector<const MgeTensor*> constants_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<MgeAttr> attrs_;
};

// An MgeGraph with what it points to.
class GraphHolder {
 public:
  // nodes: (op, inputs, outputs) each, with numbers of values; constants: number of a value -> array.
  GraphHolder(const py::sequence& values, const py::sequence& nodes, std::vector<uint32_t> inputs,
              std::vector<uint32_t> outputs, const py::dict& constants)
      : types(values), inputs_(std::move(inputs)), outputs_(std::move(outputs)), constants_(constants) {
    for (const MgeTensorType& type : types.types) values_.push_back({type, nullptr});
    for (auto item : constants)
      values_.at(py::cast<size_t>(item.first)).constant = py::cast<py::array>(item.second).data();
    for (py::handle item : nodes) {
      auto node = py::cast<py::tuple>(item);
      ops_.push_back(py::cast<std::shared_ptr<OpHolder>>(node[0]));
      edges_.push_back(py::cast<std::vector<uint32_t>>(node[1]));
      edges_.push_back(py::cast<std::vector<uint32_t>>(node[2]));
    }
    for (size_t i = 0; i < ops_.size(); ++i)
      nodes_.push_back({&ops_[i]->op, edges_[2 * i].data(), edges_[2 * i + 1].data()});
    graph.struct_size = sizeof graph;
    graph.value_count = static_cast<uint32_t>(values_.size());
    graph.node_count = static_cast<uint32_t>(nodes_.size());
    graph.input_count = static_cast<uint32_t>(inputs_.size());
    graph.output_count = static_cast<uint32_t>(outputs_.size());
    graph.values = values_.data();
    graph.nodes = nodes_.data();
    graph.inputs = inputs_.data();
    graph.outputs = outputs_.data();
  }
  GraphHolder(const GraphHolder&) = delete;
  GraphHolder& operator=(const GraphHolder&) = delete;

  // The types of the graph's own inputs and outputs, as (code, bits, shape).
  py::tuple types_of(const std::vector<uint32_t>& which) const {
    py::list found;
    for (uint32_t v : which) {
      const MgeTensorType& type = types.types.at(v);
      found.append(py::make_tuple(type.dtype.code, type.dtype.bits, py::cast(types.shapes.at(v))));
    }
    return py::tuple(found);
  }
  py::tuple input_types() const { return types_of(inputs_); }
  py::tuple output_types() const { return types_of(outputs_); }

  MgeGraph graph{};
  const TypeHolder types;

 private:
  std::vector<uint32_t> inputs_, outputs_;
  py::dict constants_;  // keeps the arrays alive
  std::vector<MgeValue> values_;
  std::vector<std::shared_ptr<OpHolder>> ops_;
  std::vector<std::vector<uint32_t>> edges_;
  std::vector<MgeNode> nodes_;
};

void OpHolder::add_attr(Store& store, std::string name, uint32_t kind, py::handle value) {
  store.name = std::move(name);
  MgeAttr attr{};
  attr.name = store.name.c_str();
  attr.kind = kind;
  size_t count = 0;
  switch (kind) {
    case MGE_ATTR_NONE:
      break;
    case MGE_ATTR_INT:
    case MGE_ATTR_BOOL:
      attr.value.i = py::cast<int64_t>(value);
      break;
    case MGE_ATTR_FLOAT:
      attr.value.f = py::cast<double>(value);
      break;
    case MGE_ATTR_STRING:
    case MGE_ATTR_BYTES:
      store.text = py::cast<std::string>(value);
      count = store.text.size();
      if (kind == MGE_ATTR_STRING)
        attr.value.s = store.text.c_str();
      else
        attr.value.bytes = reinterpret_cast<const uint8_t*>(store.text.data());
      break;
    case MGE_ATTR_DTYPE:
      attr.value.dtype = dtype_of(value);
      break;
    case MGE_ATTR_GRAPH:
      store.graph = py::cast<std::shared_ptr<GraphHolder>>(value);
      attr.value.graph = &store.graph->graph;
      break;
    case MGE_ATTR_INTS:
    case MGE_ATTR_BOOLS:
      store.ints = py::cast<std::vector<int64_t>>(value);
      attr.value.ints = store.ints.data();
      count = store.ints.size();
      break;
    case MGE_ATTR_FLOATS:
      store.floats = py::cast<std::vector<double>>(value);
      attr.value.floats = store.floats.data();
      count = store.floats.size();
      break;
    case MGE_ATTR_STRINGS:
      store.strings = py::cast<std::vector<std::string>>(value);
      for (const std::string& text : store.strings) store.pointers.push_back(text.c_str());
      attr.value.strings = store.pointers.data();
      count = store.strings.size();
      break;
    case MGE_ATTR_DTYPES:
      for (py::handle item : py::cast<py::sequence>(value)) store.dtypes.push_back(dtype_of(item));
      attr.value.dtypes = store.dtypes.data();
      count = store.dtypes.size();
      break;
    default:
      throw py::value_error("kind of attribute " + store.name);
  }
  attr.count = static_cast<uint32_t>(count);
  attrs_.push_back(attr);
}

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_DESCRIPTIONS_HPP
