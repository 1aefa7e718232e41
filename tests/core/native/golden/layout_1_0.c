/* The layout of plugin ABI 1.0 on 64-bit machines, frozen: a line that fails to compile is a broken promise.
 * Structs with `struct_size` may become larger than here, never smaller; the others keep their size for good. */
#include <stddef.h>

#include "plugin.h"

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == offset, #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == size, #type)
#define GROWN_SIZE(type, size) _Static_assert(sizeof(type) >= size, #type)

SIZE(MgeError, 512);
AT(MgeError, struct_size, 0);
AT(MgeError, code, 4);
AT(MgeError, message, 8);

SIZE(MgeDevice, 8);
AT(MgeDevice, type, 0);
AT(MgeDevice, index, 4);

SIZE(MgeDataType, 4);
AT(MgeDataType, code, 0);
AT(MgeDataType, bits, 1);
AT(MgeDataType, lanes, 2);

SIZE(MgeTensor, 48);
AT(MgeTensor, data, 0);
AT(MgeTensor, device, 8);
AT(MgeTensor, ndim, 16);
AT(MgeTensor, dtype, 20);
AT(MgeTensor, shape, 24);
AT(MgeTensor, strides, 32);
AT(MgeTensor, byte_offset, 40);

SIZE(MgeTensorType, 16);
AT(MgeTensorType, dtype, 0);
AT(MgeTensorType, ndim, 4);
AT(MgeTensorType, shape, 8);

SIZE(MgeAttr, 24);
AT(MgeAttr, name, 0);
AT(MgeAttr, kind, 8);
AT(MgeAttr, count, 12);
AT(MgeAttr, value, 16);

GROWN_SIZE(MgeOp, 64);
AT(MgeOp, struct_size, 0);
AT(MgeOp, op_version, 4);
AT(MgeOp, name, 8);
AT(MgeOp, attrs, 16);
AT(MgeOp, inputs, 24);
AT(MgeOp, outputs, 32);
AT(MgeOp, attr_count, 40);
AT(MgeOp, input_count, 44);
AT(MgeOp, output_count, 48);
AT(MgeOp, flags, 52);
AT(MgeOp, constants, 56);

SIZE(MgeValue, 24);
AT(MgeValue, type, 0);
AT(MgeValue, constant, 16);

SIZE(MgeNode, 24);
AT(MgeNode, op, 0);
AT(MgeNode, inputs, 8);
AT(MgeNode, outputs, 16);

GROWN_SIZE(MgeGraph, 56);
AT(MgeGraph, struct_size, 0);
AT(MgeGraph, value_count, 4);
AT(MgeGraph, node_count, 8);
AT(MgeGraph, input_count, 12);
AT(MgeGraph, output_count, 16);
AT(MgeGraph, reserved, 20);
AT(MgeGraph, values, 24);
AT(MgeGraph, nodes, 32);
AT(MgeGraph, inputs, 40);
AT(MgeGraph, outputs, 48);

GROWN_SIZE(MgeDeviceInfo, 160);
AT(MgeDeviceInfo, struct_size, 0);
AT(MgeDeviceInfo, flags, 4);
AT(MgeDeviceInfo, dlpack_type, 8);
AT(MgeDeviceInfo, stream_count, 12);
AT(MgeDeviceInfo, memory_bytes, 16);
AT(MgeDeviceInfo, name, 24);
AT(MgeDeviceInfo, capabilities, 152);

SIZE(MgeInplacePair, 8);
AT(MgeInplacePair, input, 0);
AT(MgeInplacePair, output, 4);

GROWN_SIZE(MgeKernelInfo, 40);
AT(MgeKernelInfo, struct_size, 0);
AT(MgeKernelInfo, flags, 4);
AT(MgeKernelInfo, workspace_bytes, 8);
AT(MgeKernelInfo, inplace, 16);
AT(MgeKernelInfo, inplace_count, 24);
AT(MgeKernelInfo, reserved, 28);
AT(MgeKernelInfo, name, 32);

GROWN_SIZE(MgeHost, 56);
AT(MgeHost, struct_size, 0);
AT(MgeHost, abi_major, 4);
AT(MgeHost, abi_minor, 8);
AT(MgeHost, thread_count, 12);
AT(MgeHost, core_version, 16);
AT(MgeHost, log, 24);
AT(MgeHost, parallel_for, 32);
AT(MgeHost, tuning_get, 40);
AT(MgeHost, tuning_put, 48);

GROWN_SIZE(MgeBackend, 208);
AT(MgeBackend, struct_size, 0);
AT(MgeBackend, abi_major, 4);
AT(MgeBackend, abi_minor, 8);
AT(MgeBackend, min_host_minor, 12);
AT(MgeBackend, name, 16);
AT(MgeBackend, vendor, 24);
AT(MgeBackend, version, 32);
AT(MgeBackend, priority, 40);
AT(MgeBackend, reserved, 44);
AT(MgeBackend, device_count, 48);
AT(MgeBackend, device_info, 56);
AT(MgeBackend, mem_alloc, 64);
AT(MgeBackend, mem_free, 72);
AT(MgeBackend, mem_copy, 80);
AT(MgeBackend, supports, 88);
AT(MgeBackend, prepare, 96);
AT(MgeBackend, run, 104);
AT(MgeBackend, release, 112);
AT(MgeBackend, stream_create, 120);
AT(MgeBackend, stream_destroy, 128);
AT(MgeBackend, stream_sync, 136);
AT(MgeBackend, event_create, 144);
AT(MgeBackend, event_destroy, 152);
AT(MgeBackend, event_record, 160);
AT(MgeBackend, event_wait, 168);
AT(MgeBackend, event_sync, 176);
AT(MgeBackend, compile, 184);
AT(MgeBackend, execute, 192);
AT(MgeBackend, destroy, 200);

_Static_assert(MGE_OK == 0, "MgeStatus");
_Static_assert(MGE_FAILED == 1, "MgeStatus");
_Static_assert(MGE_UNSUPPORTED == 2, "MgeStatus");
_Static_assert(MGE_OUT_OF_MEMORY == 3, "MgeStatus");
_Static_assert(MGE_BAD_ARGUMENT == 4, "MgeStatus");
_Static_assert(MGE_INDEX_RANGE == 5, "MgeStatus");
_Static_assert(MGE_DEVICE_LOST == 6, "MgeStatus");
_Static_assert(MGE_INT == 0, "MgeTypeCode");
_Static_assert(MGE_UINT == 1, "MgeTypeCode");
_Static_assert(MGE_FLOAT == 2, "MgeTypeCode");
_Static_assert(MGE_BFLOAT == 4, "MgeTypeCode");
_Static_assert(MGE_BOOL == 6, "MgeTypeCode");
_Static_assert(MGE_ATTR_NONE == 0, "MgeAttrKind");
_Static_assert(MGE_ATTR_INT == 1, "MgeAttrKind");
_Static_assert(MGE_ATTR_FLOAT == 2, "MgeAttrKind");
_Static_assert(MGE_ATTR_BOOL == 3, "MgeAttrKind");
_Static_assert(MGE_ATTR_STRING == 4, "MgeAttrKind");
_Static_assert(MGE_ATTR_DTYPE == 5, "MgeAttrKind");
_Static_assert(MGE_ATTR_BYTES == 6, "MgeAttrKind");
_Static_assert(MGE_ATTR_GRAPH == 7, "MgeAttrKind");
_Static_assert(MGE_ATTR_INTS == 8, "MgeAttrKind");
_Static_assert(MGE_ATTR_FLOATS == 9, "MgeAttrKind");
_Static_assert(MGE_ATTR_BOOLS == 10, "MgeAttrKind");
_Static_assert(MGE_ATTR_STRINGS == 11, "MgeAttrKind");
_Static_assert(MGE_ATTR_DTYPES == 12, "MgeAttrKind");
_Static_assert(MGE_OP_TUNE == 1, "MgeOpFlags");
_Static_assert(MGE_OP_DETERMINISTIC == 2, "MgeOpFlags");
_Static_assert(MGE_DEVICE_HOST_MEMORY == 1, "MgeDeviceFlags");
_Static_assert(MGE_KERNEL_STRIDED_OK == 1, "MgeKernelFlags");
_Static_assert(MGE_KERNEL_OPTIONAL_OUT == 2, "MgeKernelFlags");
_Static_assert(MGE_KERNEL_PARALLEL == 4, "MgeKernelFlags");
_Static_assert(MGE_HOST_TO_DEVICE == 0, "MgeCopyKind");
_Static_assert(MGE_DEVICE_TO_HOST == 1, "MgeCopyKind");
_Static_assert(MGE_DEVICE_TO_DEVICE == 2, "MgeCopyKind");
