// A backend for tests of what few kernels use: values of constants in prepare, and outputs that nobody needs.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "mge/kernel.hpp"

namespace {

std::atomic<int> nulls{0};

struct Prepared {
  int64_t count;
  bool is_sort;
  std::vector<float> packed;  // the second input of `add` where prepare knew it
};

using Memory = mge::HostBackend<void>;

int32_t device_count() { return 1; }
int device_info(int32_t, MgeDeviceInfo* info, MgeError*) {
  info->flags = MGE_DEVICE_HOST_MEMORY;
  return MGE_OK;
}
int supports(int32_t, const MgeOp* op, char* reason, size_t capacity) {
  mge::Use use(*op);
  bool is_float = use.inputs[0].dtype.code == MGE_FLOAT && use.inputs[0].dtype.bits == 32;
  bool good = is_float && (use.name == "add" ? use.inputs[0].shape == use.inputs[1].shape
                                             : use.name == "sort" && use.inputs[0].shape.size() == 1 && !use.flag("descending"));
  if (!good) snprintf(reason, capacity, "only add of equal shapes, and sort");
  return good;
}
int prepare(int32_t, const MgeOp* op, void** kernel, MgeKernelInfo* info, MgeError* error) {
  mge::Use use(*op);
  auto* made = new Prepared{use.outputs[0].size(), use.name == "sort", {}};
  const MgeTensor* known = op->constants && !made->is_sort ? op->constants[1] : nullptr;
  if (known) {
    if (known->ndim != op->inputs[1].ndim || known->dtype.bits != 32) return mge_fail(error, MGE_FAILED, "another type");
    auto* values = static_cast<const float*>(known->data);
    made->packed.assign(values, values + made->count);
    for (float& value : made->packed) value += 100;  // so that results show it
  }
  if (made->is_sort) info->flags = MGE_KERNEL_OPTIONAL_OUT;
  *kernel = made;
  return MGE_OK;
}
void release(void* kernel) { delete static_cast<Prepared*>(kernel); }
int run(void* kernel, void*, const MgeTensor* const* in, MgeTensor* const* out, void*, MgeError*) {
  auto* mine = static_cast<Prepared*>(kernel);
  auto* x = static_cast<const float*>(in[0]->data);
  if (!mine->is_sort) {
    auto* y = mine->packed.empty() ? static_cast<const float*>(in[1]->data) : mine->packed.data();
    for (int64_t i = 0; i < mine->count; ++i) static_cast<float*>(out[0]->data)[i] = x[i] + y[i];
    return MGE_OK;
  }
  std::vector<int32_t> order(static_cast<size_t>(mine->count));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [x](int32_t a, int32_t b) { return x[a] < x[b]; });
  nulls += !out[0] + !out[1];
  for (size_t i = 0; out[0] && i < order.size(); ++i) static_cast<float*>(out[0]->data)[i] = x[order[i]];
  if (out[1]) std::copy(order.begin(), order.end(), static_cast<int32_t*>(out[1]->data));
  return MGE_OK;
}

const MgeBackend table = {
    MGE_BACKEND_VERSION, "extras", "Extras Ltd.", "0", -1, 0, device_count, device_info,
    Memory::mem_alloc, Memory::mem_free, Memory::mem_copy, supports, prepare, run, release,
    nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

MGE_DEFINE_BACKEND(table)

extern "C" MGE_EXPORT int extras_nulls() { return nulls.exchange(0); }
