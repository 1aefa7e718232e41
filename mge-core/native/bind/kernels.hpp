// Kernels that Python can call.
//
// In: a backend, descriptions. Out: `CallableKernel`; `prepare` and `compile`.
// A part of bind.cc.
#ifndef MGE_NATIVE_BIND_KERNELS_HPP
#define MGE_NATIVE_BIND_KERNELS_HPP

#include "memory.hpp"

namespace mge {
namespace {

py::object result_of(int status, const MgeError& error) {
  if (status == MGE_OK) return py::none();
  return py::make_tuple(status, std::string(error.message, strnlen(error.message, sizeof error.message)));
}

class CallableKernel {
 public:
  CallableKernel(std::shared_ptr<Kernel> kernel, std::shared_ptr<TypeHolder> inputs, std::shared_ptr<TypeHolder> outputs)
      : kernel_(std::move(kernel)), inputs_(std::move(inputs)), outputs_(std::move(outputs)),
        place_(kernel_->backend().dlpack_device(kernel_->device())) {}

  const std::shared_ptr<Kernel>& kernel() const { return kernel_; }

  // None, or (status, text).
  py::object call(const py::sequence& inputs, const py::sequence& outputs) { return repeat(inputs, outputs, 1); }

  // The same, `count` times in a row: what a benchmark subtracts.
  py::object repeat(const py::sequence& inputs, const py::sequence& outputs, int64_t count) {
    if (inputs.size() != inputs_->types.size() || outputs.size() != outputs_->types.size())
      throw py::value_error("the number of arrays differs from the number of inputs or outputs");
    std::vector<MgeTensor> tensors(inputs.size() + outputs.size());
    std::vector<MgeTensor*> pointers(tensors.size());
    for (size_t i = 0; i < inputs.size(); ++i) pointers[i] = fill(tensors[i], inputs[i], *inputs_, i, false);
    for (size_t i = 0; i < outputs.size(); ++i) {
      size_t at = inputs.size() + i;
      pointers[at] = fill(tensors[at], outputs[i], *outputs_, i, true);
    }
    MgeError error = no_error();
    int status = MGE_OK;
    {
      py::gil_scoped_release release;
      for (int64_t i = 0; i < count && status == MGE_OK; ++i)
        status = run(pointers.data(), pointers.data() + inputs.size(), &error);
    }
    return result_of(status, error);
  }

 private:
  MgeTensor* fill(MgeTensor& tensor, const py::object& from, const TypeHolder& types, size_t i, bool is_output) const {
    if (is_output && from.is_none()) {
      if (kernel_->flags() & MGE_KERNEL_OPTIONAL_OUT) return nullptr;
      throw py::value_error("an output is None, and the kernel has not OPTIONAL_OUT");
    }
    tensor = MgeTensor{};
    tensor.data = data_of(from, types.nbytes[i]);
    tensor.device = place_;
    tensor.ndim = types.types[i].ndim;
    tensor.dtype = types.types[i].dtype;
    tensor.shape = const_cast<int64_t*>(types.types[i].shape);
    return &tensor;
  }

  void* data_of(const py::object& from, size_t nbytes) const {
    bool is_good, is_array = py::isinstance<py::array>(from);
    void* data;
    if (is_array) {
      auto array = py::reinterpret_borrow<py::array>(from);
      is_good = static_cast<size_t>(array.nbytes()) == nbytes && (array.flags() & py::array::c_style);
      data = const_cast<void*>(array.data());
    } else {  // a DeviceArray
      is_good = py::cast<size_t>(from.attr("nbytes")) == nbytes;
      data = reinterpret_cast<void*>(py::cast<uintptr_t>(from.attr("address")));
    }
    if (!is_good) throw py::value_error("an array has another size than the kernel was made for, or is not dense");
    if (is_array != (place_.type == 1)) throw py::value_error("an array is in another memory than the kernel's");
    return nbytes ? data : nullptr;
  }

  int run(MgeTensor** inputs, MgeTensor** outputs, MgeError* error) {
    Alone& alone = Alone::of(kernel_->backend(), kernel_->device());
    if (alone.error.code != MGE_OK) return *error = alone.error, error->code;
    void* workspace = nullptr;
    size_t nbytes = kernel_->workspace_bytes();
    if (nbytes && alone.pool.take(nbytes, &workspace, error) != MGE_OK) return error->code;
    int status = kernel_->run(alone.stream, const_cast<const MgeTensor* const*>(inputs), outputs, workspace, error);
    if (alone.stream) {
      MgeError late = no_error();
      int synced = kernel_->backend().table().stream_sync(alone.stream, &late);
      if (status == MGE_OK && synced != MGE_OK) status = synced, *error = late;
    }
    if (workspace) alone.pool.give(workspace, nbytes);
    return status;
  }

  std::shared_ptr<Kernel> kernel_;
  std::shared_ptr<TypeHolder> inputs_, outputs_;
  const MgeDevice place_;
};

// (kernel, None), or (None, (status, text)).
py::tuple prepare(const Backend& backend, int32_t device, const std::shared_ptr<OpHolder>& op) {
  MgeError error = no_error();
  std::shared_ptr<Kernel> kernel;
  {
    py::gil_scoped_release release;
    kernel = Kernel::prepare(backend, device, op->op, &error);
  }
  if (!kernel) return py::make_tuple(py::none(), result_of(error.code, error));
  auto inputs = std::shared_ptr<TypeHolder>(op, const_cast<TypeHolder*>(&op->inputs));  // share the op's
  auto outputs = std::shared_ptr<TypeHolder>(op, const_cast<TypeHolder*>(&op->outputs));
  return py::make_tuple(std::make_shared<CallableKernel>(kernel, inputs, outputs), py::none());
}

py::tuple compile(const Backend& backend, int32_t device, const std::shared_ptr<GraphHolder>& graph) {
  auto inputs = std::make_shared<TypeHolder>(graph->input_types());
  auto outputs = std::make_shared<TypeHolder>(graph->output_types());
  MgeError error = no_error();
  std::shared_ptr<Kernel> kernel;
  {
    py::gil_scoped_release release;
    kernel = Kernel::compile(backend, device, graph->graph, &error);
  }
  if (!kernel) return py::make_tuple(py::none(), result_of(error.code, error));
  return py::make_tuple(std::make_shared<CallableKernel>(kernel, inputs, outputs), py::none());
}

}  // namespace
}  // namespace mge

#endif  // MGE_NATIVE_BIND_KERNELS_HPP
