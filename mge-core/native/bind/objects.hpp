// Objects of the Python classes that the fast paths make, without their constructors.
//
// In: the classes Tensor, Node, Signature and Buffer. Out: `Classes`, `Slot`.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_OBJECTS_HPP
#define MGE_NATIVE_BIND_OBJECTS_HPP

#include "plan.hpp"

namespace mge {
namespace {

// One slot of a Python class with __slots__, without the way through its descriptor.
class Slot {
 public:
  Slot(const py::object& type, const char* name) {
    py::object found = type.attr(name);
    if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) throw py::type_error(std::string(name) + " is no slot");
    offset_ = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
  }
  // Borrowed; nullptr where nothing is there.
  PyObject* get(PyObject* object) const { return place(object); }
  // In an object that was just made.
  void set(const py::object& object, py::object value) const { place(object.ptr()) = value.release().ptr(); }
  // In place of what is there.
  void replace(const py::object& object, py::object value) const {
    auto before = py::reinterpret_steal<py::object>(place(object.ptr()));
    set(object, std::move(value));
  }

 private:
  PyObject*& place(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }
  Py_ssize_t offset_;
};

// An object of a class of Python, without __init__.
py::object make(const py::object& type) {
  auto* raw = reinterpret_cast<PyTypeObject*>(type.ptr());
  auto made = py::reinterpret_steal<py::object>(raw->tp_alloc(raw, 0));
  if (!made) throw py::error_already_set();
  return made;
}

bool is_exactly(PyObject* object, const py::object& type) {
  return object && reinterpret_cast<PyObject*>(Py_TYPE(object)) == type.ptr();
}

// What this file knows of the classes Tensor, Node, Signature and Buffer.
struct Classes {
  py::object tensor, node, signature, buffer;
  Slot tensor_node{tensor, "_node"}, tensor_grad{tensor, "_grad"};
  Slot sig{node, "sig"}, inputs{node, "inputs"}, type{node, "type"}, value{node, "buffer"}, code{node, "code"},
      offset{node, "offset"};
  Slot device{signature, "device"};
  Slot array{buffer, "array"}, block{buffer, "block"}, pool{buffer, "pool"};
  py::object no_inputs = py::tuple(), zero = py::int_(0);

  Classes(py::object t, py::object n, py::object s, py::object b)
      : tensor(std::move(t)), node(std::move(n)), signature(std::move(s)), buffer(std::move(b)) {}

  // The buffer of a node; nullptr where the node has no value in memory.
  PyObject* buffer_of(PyObject* of) const {
    PyObject* found = value.get(of);
    return is_exactly(found, buffer) ? found : nullptr;
  }
  // The buffer of a new array of a pool.
  py::object buffer_over(py::array over, const py::object& from) const {
    py::object bytes = make(buffer);
    block.set(bytes, over), array.set(bytes, std::move(over)), pool.set(bytes, from);
    return bytes;
  }
  py::object new_node(py::object use, py::object from, py::object of, py::object bytes, py::object where,
                      py::object at) const {
    py::object made = make(node);
    sig.set(made, std::move(use)), inputs.set(made, std::move(from)), type.set(made, std::move(of));
    value.set(made, std::move(bytes)), code.set(made, std::move(where)), offset.set(made, std::move(at));
    return made;
  }
  py::object tensor_of(py::object of) const {
    py::object made = make(tensor);
    tensor_node.set(made, std::move(of));
    return made;
  }
};

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_OBJECTS_HPP
