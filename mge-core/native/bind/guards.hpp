// The guards of a traced function, checked without Python.
//
// In: a list of Guard (mge/guard.py). Out: `Guards`.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_GUARDS_HPP
#define MGE_NATIVE_BIND_GUARDS_HPP

#include "common.hpp"

namespace mge {
namespace {

// Most guards find the same object, or a plain value that is equal. Of all others their own `holds` decides.
class Guards {
 public:
  explicit Guards(const py::list& guards) {
    for (py::handle item : guards) {
      auto [owner, read, value] = py::cast<std::tuple<py::object, py::tuple, py::object>>(item);
      auto attributes = py::cast<std::vector<py::object>>(read[2]);
      all_.push_back({py::reinterpret_borrow<py::object>(item), owner, read[1], value, std::move(attributes)});
    }
  }

  bool hold() const {
    for (const Guard& guard : all_)
      if (!is_same(found(guard).ptr(), guard.value.ptr()) && !py::cast<bool>(guard.python.attr("holds")())) return false;
    return true;
  }

 private:
  struct Guard {
    py::object python, owner, name, value;
    std::vector<py::object> attributes;
  };

  // What its name stands for now; an empty object where that is nothing.
  static py::object found(const Guard& guard) {
    const bool is_cell = PyCell_Check(guard.owner.ptr());
    PyObject* first = is_cell ? PyCell_GET(guard.owner.ptr()) : PyDict_GetItemWithError(guard.owner.ptr(), guard.name.ptr());
    auto now = py::reinterpret_borrow<py::object>(first);
    for (size_t i = 0; now && i < guard.attributes.size(); ++i)
      now = py::reinterpret_steal<py::object>(PyObject_GetAttr(now.ptr(), guard.attributes[i].ptr()));
    if (!now) PyErr_Clear();
    return now;
  }

  static bool is_same(PyObject* now, PyObject* value) {
    if (!now || now == value) return now;
    if (Py_TYPE(now) != Py_TYPE(value)) return false;
    if (PyDict_CheckExact(now)) return PyDict_GET_SIZE(now) == 0 && PyDict_GET_SIZE(value) == 0;
    if (!PyLong_CheckExact(now) && !PyFloat_CheckExact(now) && !PyUnicode_CheckExact(now)) return false;
    return PyObject_RichCompareBool(now, value, Py_EQ) == 1;
  }

  std::vector<Guard> all_;
};

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_GUARDS_HPP
