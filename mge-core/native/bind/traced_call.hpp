// The fast path of calling a traced function.
//
// In: a plan, and what a call changes. Out: `TracedCall`.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_TRACED_CALL_HPP
#define MGE_NATIVE_BIND_TRACED_CALL_HPP

#include "guards.hpp"
#include "recorder.hpp"

namespace mge {
namespace {

struct Unfit {};

// A traced call whose arguments and state alone change: from nodes to new tensors, over a plan without steps in Python.
class TracedCall {
 public:
  // inputs: which inputs of the plan its steps read. nodes: what the run was over: arguments, then what was captured.
  // extra: buffers of the plan's further inputs. traced: the mge.traced.Traced. sources: inputs that are as they are
  // now, since `extra` comes from them. donated: what the plan may overwrite. outputs: (kind of storage, number of the
  // result or input, leaf signature) each. Throws Unfit where a run has more to do than this.
  TracedCall(py::object plan, std::shared_ptr<DevicePool> pool, py::object pool_face, const std::vector<size_t>& inputs,
             const py::list& nodes, const py::list& extra, const py::object& traced,
             const std::vector<size_t>& sources, const std::vector<size_t>& donated, const py::list& outputs)
      : plan_object_(std::move(plan)), plan_(py::cast<Plan&>(plan_object_)), pool_(std::move(pool)),
        pool_face_(std::move(pool_face)), classes_(recorder->classes()),
        returned_(py::cast<size_t>(traced.attr("returns"))), kept_(extra), guards_(traced.attr("guards")) {
    const size_t count = py::cast<size_t>(traced.attr("arguments"));
    auto replaceable = py::cast<std::vector<size_t>>(traced.attr("replaceable"));
    auto has = [](const std::vector<size_t>& all, size_t i) { return std::find(all.begin(), all.end(), i) != all.end(); };
    for (size_t i = 0; i < count; ++i) arguments_.emplace_back(nodes[i]);
    for (py::handle item : py::list(traced.attr("captured"))) {
      auto [handle, kind] = py::cast<std::pair<py::object, std::string>>(item);
      const size_t i = count + captured_.size();
      py::object node = nodes[i];
      PyObject* buffer = classes_.buffer_of(node.ptr());
      bool has_handle = kind == "value";
      if (!buffer || kind == "grad" || (has_handle && !is_tensor(handle))) throw Unfit();
      std::optional<bool> is_donated;
      if (has(replaceable, i)) is_donated = has(donated, i);
      captured_.push_back({has_handle ? handle : py::none(), py::weakref(node), py::weakref(py::handle(buffer)),
                           Kind(node), has_handle && !has(sources, i), is_donated});
    }
    const std::vector<size_t>& sizes = plan_.input_bytes();
    const size_t total = count + captured_.size();
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t from = inputs.at(i);
      bool moves = from < count || (from < total && captured_[from - count].moves);
      if (moves) moving_.push_back({i, from});
      py::object buffer = from < total ? py::object(nodes[from].attr("buffer")) : py::object(extra[from - total]);
      inputs_.push_back(moves ? nullptr : Plan::address(buffer.attr("array"), sizes[i]));
    }
    results_.resize(plan_.result_bytes().size());
    std::vector<std::pair<bool, size_t>> places;
    for (py::handle item : outputs) {
      auto [kind, number, leaf] = py::cast<std::tuple<std::string, std::optional<size_t>, py::object>>(item);
      py::object type = leaf.attr("type");
      bool is_result = kind == "result", fits = is_result || (kind == "input" && number && has(donated, *number));
      if (fits && number && !is_result) fits = *number < total && py::object(nodes[*number].attr("type")).is(type);
      if (!fits || !number) throw Unfit();
      std::pair<bool, size_t> place{is_result, *number};
      if (std::find(places.begin(), places.end(), place) != places.end()) throw Unfit();
      places.push_back(place);
      outputs_.push_back({is_result, *number, leaf, type, py::cast<std::vector<py::ssize_t>>(type.attr("shape")),
                          type.attr("dtype").attr("dtype")});
    }
    for (py::handle item : py::list(traced.attr("effects"))) {
      auto [handle, kind, output] = py::cast<std::tuple<py::object, std::string, std::optional<size_t>>>(item);
      if (!is_tensor(handle)) throw Unfit();  // also where it is an argument
      effects_.push_back({handle, kind == "grad", output.value_or(NONE)});
    }
    for (py::handle handle : py::list(traced.attr("no_grad"))) {
      if (!is_tensor(handle)) throw Unfit();
      no_grad_.push_back(py::reinterpret_borrow<py::object>(handle));
    }
  }

  // A list of tensors; (status, text) of the step that failed; or None where a run has more to do than this.
  py::object call(const py::list& nodes) {
    const Classes& of = classes_;
    plan_.reset();
    if (nodes.size() != arguments_.size() || !guards_.hold()) return py::none();
    std::vector<py::object> buffers;  // other threads may drop them during the run
    buffers.reserve(arguments_.size() + captured_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) {
      PyObject* buffer = value_of(PyList_GET_ITEM(nodes.ptr(), static_cast<Py_ssize_t>(i)), arguments_[i]);
      if (!buffer) return py::none();
      buffers.push_back(py::reinterpret_borrow<py::object>(buffer));
    }
    for (const Captured& c : captured_) {
      PyObject* node = c.handle.is_none() ? target(c.node) : of.tensor_node.get(c.handle.ptr());
      PyObject* buffer = value_of(node, c.kind);
      if (!buffer) return py::none();
      bool alone = Py_REFCNT(node) == 1 && Py_REFCNT(buffer) == 1 && of.pool.get(buffer) != Py_None;
      if (c.is_donated && alone != *c.is_donated) return py::none();
      if (!c.moves && (node != target(c.node) || buffer != target(c.buffer))) return py::none();
      buffers.push_back(py::reinterpret_borrow<py::object>(buffer));
    }
    for (const py::object& handle : no_grad_) {
      PyObject* grad = of.tensor_grad.get(handle.ptr());
      if (grad && grad != Py_None) return py::none();
    }
    for (const Moving& m : moving_) {
      PyObject* array = of.array.get(buffers[m.from].ptr());
      if (!array || !py::isinstance<py::array>(array)) return py::none();
      inputs_[m.input] = Plan::address(array, plan_.input_bytes()[m.input]);
    }
    std::vector<std::unique_ptr<DevicePool::Block>> blocks;
    blocks.reserve(results_.size());
    for (size_t r = 0; r < results_.size(); ++r) {
      MgeError error = no_error();
      blocks.push_back(pool_->block(plan_.result_bytes()[r], &error));
      if (!blocks.back()) return py::none();
      results_[r] = blocks.back()->memory;
    }
    py::object failed = plan_.start(inputs_.data(), results_.data());
    if (!failed.is_none()) return failed;
    std::vector<py::object> made;
    made.reserve(outputs_.size());
    for (const Output& o : outputs_) {
      py::object buffer;
      if (o.is_result) {
        void* memory = blocks[o.number]->memory;
        py::array array(o.dtype, o.shape, memory, DevicePool::keep(std::move(blocks[o.number])));
        buffer = of.buffer_over(std::move(array), pool_face_);
      } else {
        buffer = buffers[o.number];
      }
      made.push_back(of.new_node(o.leaf, of.no_inputs, o.type, std::move(buffer), py::none(), of.zero));
    }
    py::list tensors(returned_);
    for (size_t i = 0; i < returned_; ++i) tensors[i] = of.tensor_of(made[i]);
    for (const Effect& e : effects_) {
      py::object value = e.output == NONE ? py::none() : made[e.output];
      if (e.is_grad && e.output != NONE) value = of.tensor_of(std::move(value));
      (e.is_grad ? of.tensor_grad : of.tensor_node).replace(e.handle, std::move(value));
    }
    plan_.reset();  // all handles have their new values: an interrupt from here on loses nothing
    return std::move(tensors);
  }

 private:
  static constexpr size_t NONE = SIZE_MAX;

  // Borrowed from its owner, who lives as long as the GIL is held here; nullptr where it is gone.
  static PyObject* target(const py::weakref& ref) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* found = nullptr;
    if (PyWeakref_GetRef(ref.ptr(), &found) == 1) Py_DECREF(found);
    return found;
#else
    PyObject* found = PyWeakref_GET_OBJECT(ref.ptr());
    return found == Py_None ? nullptr : found;
#endif
  }

  bool is_tensor(py::handle handle) const {
    return PyObject_TypeCheck(handle.ptr(), reinterpret_cast<PyTypeObject*>(classes_.tensor.ptr()));
  }

  // The type and the device of a node.
  struct Kind {
    py::object type, device;
    explicit Kind(py::handle node) : type(node.attr("type")), device(node.attr("sig").attr("device")) {}
  };
  // The buffer of a node of this kind, else nullptr.
  PyObject* value_of(PyObject* node, const Kind& kind) const {
    if (!is_exactly(node, classes_.node) || classes_.type.get(node) != kind.type.ptr()) return nullptr;
    return classes_.device.get(classes_.sig.get(node)) == kind.device.ptr() ? classes_.buffer_of(node) : nullptr;
  }
  struct Captured {
    py::object handle;
    py::weakref node, buffer;
    Kind kind;
    bool moves;
    std::optional<bool> is_donated;
  };
  struct Moving {
    size_t input, from;
  };
  struct Output {
    bool is_result;
    size_t number;
    py::object leaf, type;
    std::vector<py::ssize_t> shape;
    py::dtype dtype;
  };
  struct Effect {
    py::object handle;
    bool is_grad;
    size_t output;
  };

  py::object plan_object_;
  Plan& plan_;
  std::shared_ptr<DevicePool> pool_;
  py::object pool_face_;
  const Classes& classes_;
  size_t returned_;
  py::object kept_;
  Guards guards_;
  std::vector<Kind> arguments_;
  std::vector<Captured> captured_;
  std::vector<void*> inputs_, results_;
  std::vector<Moving> moving_;
  std::vector<Output> outputs_;
  std::vector<Effect> effects_;
  std::vector<py::object> no_grad_;
};

// A read-only array over the same bytes that keeps `owner` alive.
py::array read_only(const py::array& array, const py::object& owner) {
  std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
  py::array made(array.dtype(), std::move(shape), array.data(), owner);
  py::detail::array_proxy(made.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return made;
}

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_TRACED_CALL_HPP
