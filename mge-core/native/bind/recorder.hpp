// The fast path of recording a call.
//
// In: an op and tensors. Out: `Recorder`; `install` puts it in the place of `Op.__call__`.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_RECORDER_HPP
#define MGE_NATIVE_BIND_RECORDER_HPP

#include "objects.hpp"

namespace mge {
namespace {

// The common case of `record` in mge/op.py, which says what it means: all arguments are tensors of one device, and a
// call that looks the same was recorded before. What else there may be is left to Python.
class Recorder {
 public:
  Recorder(const py::object& op, const py::object& graph, const py::object& mode, const py::object& tensor,
           const py::object& errors, const py::object& buffer)
      : classes_(tensor.attr("Tensor"), graph.attr("Node"), graph.attr("Signature"), buffer.attr("Buffer")),
        module_(op.attr("__dict__")), call_(op.attr("Op").attr("__call__")), pair_(op.attr("record_pair")),
        mode_(mode.attr("MODE")), local_(graph.attr("LOCAL")), internal_(errors.attr("INTERNAL_CODE")),
        recording_type_(graph.attr("Recording")), plain_(mode.attr("Mode"), "plain"),
        target_(mode.attr("Mode"), "recording"), index_(recording_type_, "index"),
        tokens_(recording_type_, "tokens"), owner_(recording_type_, "owner"), single_(classes_.signature, "single"),
        first_type_(classes_.signature, "type"), types_(classes_.signature, "types") {}

  const Classes& classes() const { return classes_; }
  const py::object& call() const { return call_; }
  const py::object& pair() const { return pair_; }

  // What the call returns; an empty object where this is not the common case.
  py::object record(PyObject* op, PyObject* const* args, size_t count, const py::tuple& attrs) const {
    auto mode = own([&](PyObject** to) { return PyContextVar_Get(mode_.ptr(), nullptr, to); });
    if (plain_.get(mode.ptr()) != Py_True || count == 0) return {};
    PyObject* device = nullptr;
    py::tuple key(count + 2), nodes(count), token(count + 1);
    for (size_t i = 0; i < count; ++i) {
      if (!PyObject_TypeCheck(args[i], reinterpret_cast<PyTypeObject*>(classes_.tensor.ptr()))) return {};
      PyObject* node = classes_.tensor_node.get(args[i]);
      if (!is_exactly(node, classes_.node) || !is_exactly(classes_.sig.get(node), classes_.signature)) return {};
      PyObject* mine = classes_.device.get(classes_.sig.get(node));
      if (i && mine != device) return {};
      device = mine;
      put(nodes, i, node), put(key, i + 2, classes_.type.get(node));
    }
    put(key, 0, attrs.ptr());
    PyTuple_SET_ITEM(key.ptr(), 1, PyLong_FromVoidPtr(device));
    auto table = py::reinterpret_steal<py::object>(PyObject_GetAttr(op, signatures_.ptr()));
    if (!table) throw py::error_already_set();
    PyObject* sig = PyDict_GetItemWithError(table.ptr(), key.ptr());
    if (!sig) {
      PyErr_Clear();  // an attribute that does not hash
      return {};
    }
    auto recording = py::reinterpret_borrow<py::object>(target_.get(mode.ptr()));
    if (recording.is_none()) recording = py::getattr(local_, recording_);
    if (!is_exactly(recording.ptr(), recording_type_)) return {};
    put(token, 0, sig);
    auto index = py::reinterpret_borrow<py::object>(index_.get(recording.ptr()));
    for (size_t i = 0; i < count; ++i) {
      PyObject* node = PyTuple_GET_ITEM(nodes.ptr(), static_cast<Py_ssize_t>(i));
      PyObject* at = PyDict_GetItemWithError(index.ptr(), node);
      if (at)
        put(token, i + 1, at);
      else
        PyTuple_SET_ITEM(token.ptr(), static_cast<Py_ssize_t>(i + 1), enlisted(recording, node, args[i]).release().ptr());
    }
    return append(recording, sig, std::move(nodes), token);
  }

 private:
  template <typename F>
  static py::object own(F get) {
    PyObject* found = nullptr;
    if (get(&found) < 0) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }
  static void put(const py::tuple& into, size_t i, PyObject* item) {  // of a fresh tuple
    Py_INCREF(item);
    PyTuple_SET_ITEM(into.ptr(), static_cast<Py_ssize_t>(i), item);
  }

  py::object enlisted(const py::object& recording, PyObject* node, PyObject* handle) const {
    auto made = py::reinterpret_steal<py::object>(
        PyObject_CallMethodObjArgs(recording.ptr(), enlist_.ptr(), node, handle, nullptr));
    if (!made) throw py::error_already_set();
    return made;
  }

  // Adds the node of a call, as `_append` does.
  py::object append(const py::object& recording, PyObject* sig, py::tuple nodes, const py::tuple& token) const {
    auto [code, offset] = place();
    auto use = py::reinterpret_borrow<py::object>(sig);
    auto type = py::reinterpret_borrow<py::object>(first_type_.get(sig));
    py::object node = classes_.new_node(use, std::move(nodes), std::move(type), py::none(), code, offset);
    PyObject* tokens = tokens_.get(recording.ptr());
    Py_ssize_t count = PyList_GET_SIZE(tokens);
    py::int_ position(count);
    if (PyDict_SetItem(index_.get(recording.ptr()), node.ptr(), position.ptr()) < 0 ||
        PyList_Append(tokens, token.ptr()) < 0)
      throw py::error_already_set();
    if (count > PyLong_AsSsize_t(PyDict_GetItem(module_.ptr(), cap_.ptr())) && owner_.get(recording.ptr()) == Py_None)
      module_["over_cap"](recording);
    if (single_.get(sig) == Py_True) return classes_.tensor_of(std::move(node));
    py::tuple made(static_cast<size_t>(PyTuple_GET_SIZE(types_.get(sig))));
    for (size_t i = 0; i < made.size(); ++i) made[i] = module_["_output"](recording, node, position, i);
    return std::move(made);
  }

  // The user's call site: a code object and an offset.
  std::pair<py::object, py::object> place() const {
    auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame) {
      auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
      PyObject* known = PyDict_GetItemWithError(internal_.ptr(), code.ptr());
      bool is_internal = known ? known == Py_True : py::cast<bool>(internal_[code]);
      PyObject* back = is_internal ? reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)) : nullptr;
      if (!back) return {std::move(code), py::int_(PyFrame_GetLasti(raw))};
      frame = py::reinterpret_steal<py::object>(back);
    }
    return {py::none(), py::int_(0)};
  }

  const Classes classes_;
  py::dict module_;
  const py::object call_, pair_, mode_, local_;
  py::object internal_;
  const py::object recording_type_;
  const Slot plain_, target_, index_, tokens_, owner_, single_, first_type_, types_;
  const py::str signatures_ = "signatures", recording_ = "recording", enlist_ = "enlist", cap_ = "HARD_CAP";
};

Recorder* recorder = nullptr;  // set once

// Runs a function that may throw what Python raised.
template <typename F>
PyObject* guarded(F body) {
  try {
    return body().release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

py::object checked(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// Op.__call__(*args, **attrs)
PyObject* call_op(PyObject* op, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    py::tuple attrs(static_cast<size_t>(named));
    for (Py_ssize_t i = 0; i < named; ++i)
      PyTuple_SET_ITEM(attrs.ptr(), i, PyTuple_Pack(2, PyTuple_GET_ITEM(names, i), args[count + i]));
    py::object made = recorder->record(op, args, static_cast<size_t>(count), attrs);
    if (made) return made;
    std::vector<PyObject*> all{op};
    all.insert(all.end(), args, args + count + named);
    return checked(PyObject_Vectorcall(recorder->call().ptr(), all.data(), all.size() - static_cast<size_t>(named), names));
  });
}

// record_pair(op, x, y)
PyObject* record_pair(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    py::object made;
    if (count == 3) made = recorder->record(args[0], args + 1, 2, py::tuple());
    if (made) return made;
    return checked(PyObject_Vectorcall(recorder->pair().ptr(), args, static_cast<size_t>(count), nullptr));
  });
}

// Puts the recorder in the place of `Op.__call__`; returns what takes that of `record_pair`.
py::object install(const py::object& op, const py::object& graph, const py::object& mode, const py::object& tensor,
                   const py::object& errors, const py::object& buffer) {
  static PyMethodDef call = {"__call__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_op)),
                             METH_FASTCALL | METH_KEYWORDS, "Record a call."};
  static PyMethodDef pair = {"record_pair", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(record_pair)),
                             METH_FASTCALL, "Record a binary operator."};
  if (!recorder) recorder = new Recorder(op, graph, mode, tensor, errors, buffer);
  py::object type = op.attr("Op");
  type.attr("__call__") = checked(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &call));
  return checked(PyCFunction_New(&pair, nullptr));
}

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_RECORDER_HPP
