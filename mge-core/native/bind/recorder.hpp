// The fast path of recording a call.
//
// In: an op and tensors. Out: `Recorder`; `install` puts it in the place of the Python code that it does.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_RECORDER_HPP
#define MGE_NATIVE_BIND_RECORDER_HPP

#include "objects.hpp"

#if PY_VERSION_HEX < 0x030C0000  // frames have no public way to their callers there that makes no objects
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

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
        mode_(mode.attr("MODE")), local_(graph.attr("LOCAL")), leaf_signature_(graph.attr("leaf_signature")),
        recording_type_(graph.attr("Recording")), enlist_(recording_type_.attr("enlist")),
        assign_(tensor.attr("Tensor").attr("_assign")),
        internal_(errors.attr("INTERNAL_CODE")), plain_(mode.attr("Mode"), "plain"),
        target_(mode.attr("Mode"), "recording"), index_(recording_type_, "index"),
        tokens_(recording_type_, "tokens"), owner_(recording_type_, "owner"), weight_(recording_type_, "weight"),
        handles_(recording_type_, "handles"), rebinds_(recording_type_, "rebinds"),
        single_(classes_.signature, "single"), first_type_(classes_.signature, "type"),
        types_(classes_.signature, "types"), notes_(classes_.signature, "notes"),
        nbytes_(py::module_::import("mge.types").attr("Type"), "nbytes") {}

  const Classes& classes() const { return classes_; }
  const py::object& call() const { return call_; }
  const py::object& pair() const { return pair_; }
  const py::object& recording_type() const { return recording_type_; }

  // What the call returns; an empty object where this is not the common case.
  py::object record(PyObject* op, PyObject* const* args, size_t count, const py::tuple& attrs) const {
    auto mode = own([&](PyObject** to) { return PyContextVar_Get(mode_.ptr(), nullptr, to); });
    if (plain_.get(mode.ptr()) != Py_True || count == 0) return {};
    PyObject* device = nullptr;
    py::tuple key(count + 2), nodes(count), token(count + 1);
    for (size_t i = 0; i < count; ++i) {
      if (!is_tensor(args[i])) return {};
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

  // `Recording.enlist`, for a node with a value; the rest is left to Python.
  py::object enlisted(const py::object& recording, PyObject* node, PyObject* handle) const {
    PyObject* index = index_.get(recording.ptr());
    if (PyObject* at = PyDict_GetItemWithError(index, node)) return py::reinterpret_borrow<py::object>(at);
    bool has_value = is_exactly(node, classes_.node) && classes_.value.get(node) != Py_None;
    if (!has_value || (owner_.get(recording.ptr()) == Py_None && !py::getattr(local_, requested_).is_none()))
      return enlist_(recording, py::handle(node), py::handle(handle));
    bool slow = handle != Py_None && py::cast<bool>(py::getattr(handle, slow_));
    PyObject* tokens = tokens_.get(recording.ptr());
    py::int_ position(PyList_GET_SIZE(tokens));
    add(recording, node, leaf_of(node, slow), position);
    auto weight = py::reinterpret_steal<py::object>(
        PyNumber_Add(weight_.get(recording.ptr()), nbytes_.get(classes_.type.get(node))));
    weight_.replace(recording, std::move(weight));
    PyObject* handles = handles_.get(recording.ptr());
    if (handles != Py_None && handle != Py_None)
      py::reinterpret_borrow<py::list>(handles).append(py::make_tuple(position, py::handle(handle)));
    return std::move(position);
  }

  // Adds the node of a call and returns its outputs as tensors, as `_append`.
  py::object append(const py::object& recording, PyObject* sig, py::tuple nodes, const py::object& token) const {
    auto [code, offset] = place();
    py::object node = classes_.new_node(shared(sig), std::move(nodes), shared(first_type_.get(sig)), py::none(), code, offset);
    Py_ssize_t count = PyList_GET_SIZE(tokens_.get(recording.ptr()));
    py::int_ position(count);
    add(recording, node.ptr(), token, position);
    if (count > PyLong_AsSsize_t(PyDict_GetItem(module_.ptr(), cap_.ptr())) && owner_.get(recording.ptr()) == Py_None)
      module_["over_cap"](recording);
    if (single_.get(sig) == Py_True) return classes_.tensor_of(std::move(node));
    py::tuple made(static_cast<size_t>(PyTuple_GET_SIZE(types_.get(sig))));
    auto notes = py::reinterpret_borrow<py::dict>(notes_.get(sig));
    if (made.size() && !notes.contains(gets_)) module_["get_signature"](py::handle(sig), 0);
    py::tuple inputs = py::make_tuple(node);
    for (size_t i = 0; i < made.size(); ++i) {
      auto get = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(PyDict_GetItem(notes.ptr(), gets_.ptr()), static_cast<Py_ssize_t>(i)));
      py::object output = classes_.new_node(get, inputs, shared(first_type_.get(get.ptr())), py::none(), code, offset);
      add(recording, output.ptr(), py::make_tuple(get, position), py::int_(PyList_GET_SIZE(tokens_.get(recording.ptr()))));
      PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), classes_.tensor_of(std::move(output)).release().ptr());
    }
    return std::move(made);
  }

  // `Tensor._assign`, outside of traces.
  py::object assigned(const py::object& handle, PyObject* value) const {
    auto mode = own([&](PyObject** to) { return PyContextVar_Get(mode_.ptr(), nullptr, to); });
    if (target_.get(mode.ptr()) != Py_None || !is_tensor(value)) return assign_(handle, py::handle(value));
    py::object before = shared(classes_.tensor_node.get(handle.ptr())), node = shared(classes_.tensor_node.get(value));
    if (classes_.value.get(node.ptr()) == Py_None && classes_.value.get(before.ptr()) != Py_None) {
      auto rebinds = py::reinterpret_borrow<py::dict>(rebinds_.get(py::getattr(local_, recording_).ptr()));
      auto id = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(handle.ptr()));
      PyObject* known = PyDict_GetItemWithError(rebinds.ptr(), id.ptr());
      if (!known || !py::handle(PyTuple_GET_ITEM(known, 0))().is(handle))
        rebinds[id] = py::make_tuple(py::weakref(handle), before);
    }
    classes_.tensor_node.replace(handle, std::move(node));
    return handle;
  }

  // `held` of holding.py: the index and the list hold each node.
  py::object held(const py::object& recording, const py::list& nodes) const {
    PyObject* tokens = tokens_.get(recording.ptr());
    const Py_ssize_t count = PyList_GET_SIZE(tokens);
    std::vector<Py_ssize_t> edges(static_cast<size_t>(count), 2);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* token = PyList_GET_ITEM(tokens, i);
      for (Py_ssize_t k = 1; PyTuple_CheckExact(token) && k < PyTuple_GET_SIZE(token); ++k)
        ++edges.at(PyLong_AsSize_t(PyTuple_GET_ITEM(token, k)));
    }
    for (auto [id, pair] : py::reinterpret_borrow<py::dict>(rebinds_.get(recording.ptr())))
      if (PyObject* at = PyDict_GetItemWithError(index_.get(recording.ptr()), PyTuple_GET_ITEM(pair.ptr(), 1)))
        ++edges.at(PyLong_AsSize_t(at));
    py::list wanted, donated;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* token = PyList_GET_ITEM(tokens, i);
      PyObject* node = PyList_GET_ITEM(nodes.ptr(), i);
      const bool is_held = Py_REFCNT(node) > edges[static_cast<size_t>(i)];
      if (PyTuple_CheckExact(token)) {
        if (is_held && single_.get(PyTuple_GET_ITEM(token, 0)) == Py_True) wanted.append(i);
      } else if (PyObject* buffer = is_held ? nullptr : classes_.buffer_of(node)) {
        if (Py_REFCNT(buffer) == 1 && classes_.pool.get(buffer) != Py_None) donated.append(i);
      }
    }
    return py::make_tuple(wanted, donated);
  }

 private:
  bool is_tensor(PyObject* object) const {
    return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(classes_.tensor.ptr()));
  }
  void add(const py::object& recording, PyObject* node, const py::object& token, const py::int_& position) const {
    if (PyDict_SetItem(index_.get(recording.ptr()), node, position.ptr()) < 0 ||
        PyList_Append(tokens_.get(recording.ptr()), token.ptr()) < 0)
      throw py::error_already_set();
  }
  static py::object shared(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

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

  // The signature of a leaf of the type and device of a node; both live as long as the process.
  py::object leaf_of(PyObject* node, bool slow) const {
    PyObject* type = classes_.type.get(node);
    PyObject* device = classes_.device.get(classes_.sig.get(node));
    py::object& found = leaves_[{type, device, slow}];
    if (!found) found = leaf_signature_(py::handle(type), py::handle(device), slow);
    return found;
  }

  // The user's call site: a code object and an offset.
  std::pair<py::object, py::object> place() const {
#if PY_VERSION_HEX < 0x030C0000  // without making an object of each frame
    for (auto* frame = PyThreadState_Get()->cframe->current_frame; frame; frame = frame->previous) {
      py::object code = shared(reinterpret_cast<PyObject*>(frame->f_code));
      if (!is_internal(code) || !frame->previous)
        return {code, py::int_(_PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT)))};
    }
    return {py::none(), py::int_(0)};
#else
    auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame) {
      auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
      PyObject* back = is_internal(code) ? reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)) : nullptr;
      if (!back) return {std::move(code), py::int_(PyFrame_GetLasti(raw))};
      frame = py::reinterpret_steal<py::object>(back);
    }
    return {py::none(), py::int_(0)};
#endif
  }
  bool is_internal(const py::object& code) const {
    PyObject* known = PyDict_GetItemWithError(internal_.ptr(), code.ptr());
    return known ? known == Py_True : py::cast<bool>(internal_[code]);
  }

  const Classes classes_;
  py::dict module_;
  const py::object call_, pair_, mode_, local_, leaf_signature_, recording_type_, enlist_, assign_;
  py::object internal_;
  const Slot plain_, target_, index_, tokens_, owner_, weight_, handles_, rebinds_, single_, first_type_, types_, notes_,
      nbytes_;
  const py::str signatures_ = "signatures", recording_ = "recording", requested_ = "requested", slow_ = "_slow",
                cap_ = "HARD_CAP", gets_ = "gets";
  mutable std::map<std::tuple<PyObject*, PyObject*, bool>, py::object> leaves_;
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

// Recording.enlist(node, handle)
PyObject* enlist(PyObject* recording, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    if (count < 1 || count > 2) throw py::type_error("enlist takes a node and a handle");
    return recorder->enlisted(py::reinterpret_borrow<py::object>(recording), args[0], count == 2 ? args[1] : Py_None);
  });
}

// _append(recording, sig, nodes, token)
PyObject* append(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    if (count != 4) throw py::type_error("_append takes a recording, a signature, nodes and a token");
    auto shared = [&](Py_ssize_t i) { return py::reinterpret_borrow<py::object>(args[i]); };
    return recorder->append(shared(0), args[1], py::reinterpret_borrow<py::tuple>(args[2]), shared(3));
  });
}

template <typename F>
PyCFunction function_of(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// held(recording, nodes) of holding.py
PyObject* held(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    if (count != 2) throw py::type_error("held takes a recording and its nodes");
    return recorder->held(py::reinterpret_borrow<py::object>(args[0]), py::reinterpret_borrow<py::list>(args[1]));
  });
}

// Tensor._assign(value)
PyObject* assign(PyObject* handle, PyObject* value) {
  return guarded([&] { return recorder->assigned(py::reinterpret_borrow<py::object>(handle), value); });
}

// Puts the recorder in the place of `Op.__call__`, `Recording.enlist`, `Tensor._assign`, `_append` and `held`; returns
// what takes that of `record_pair`.
py::object install(const py::object& op, const py::object& graph, const py::object& mode, const py::object& tensor,
                   const py::object& errors, const py::object& buffer) {
  static PyMethodDef methods[] = {
      {"__call__", function_of(call_op), METH_FASTCALL | METH_KEYWORDS, "Record a call."},
      {"enlist", function_of(enlist), METH_FASTCALL, "Return the position of a node; take it in if it is new."},
      {"_assign", assign, METH_O, "Make a handle stand for the value of another one."},
      {"_append", function_of(append), METH_FASTCALL, "Add the node of a call to a recording."},
      {"held", function_of(held), METH_FASTCALL, "Return what somebody holds."},
      {"record_pair", function_of(record_pair), METH_FASTCALL, "Record a binary operator."},
  };
  if (!recorder) recorder = new Recorder(op, graph, mode, tensor, errors, buffer);
  auto put = [](py::object type, PyMethodDef* method) {
    type.attr(method->ml_name) = checked(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), method));
  };
  put(op.attr("Op"), &methods[0]);
  put(recorder->recording_type(), &methods[1]);
  put(tensor.attr("Tensor"), &methods[2]);
  op.attr("_append") = checked(PyCFunction_New(&methods[3], nullptr));
  py::module_::import("mge.holding").attr("held") = checked(PyCFunction_New(&methods[4], nullptr));
  return checked(PyCFunction_New(&methods[5], nullptr));
}

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_RECORDER_HPP
