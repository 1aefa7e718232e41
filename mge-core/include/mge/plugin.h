/* mge/plugin.h: the contract between mge and a device backend, in plain C (C99).
 *
 * In: one exported function, written by the vendor. Out: a table of functions that the host calls.
 * kernel.hpp beside this file fills the table for C++ vendors; they write kernels only.
 *
 * A backend is one shared library. It links neither mge nor Python. It exports `mge_backend_entry_v1`
 * (MGE_DEFINE_BACKEND writes it), which the host calls once after dlopen(RTLD_NOW | RTLD_LOCAL).
 *
 * Versions. Structs that carry `struct_size` only ever grow at their end within major version 1. A
 * reader uses a field only where MGE_HAS says so. Structs without it, and the numbers of enums, never
 * change. The host loads a backend of its own major version whose `min_host_minor` it reaches. Compile
 * with -DMGE_TARGET_ABI_MINOR=n to use what minor version n added: hosts older than 1.n then refuse the
 * library with a clear line. The default, 0, loads everywhere.
 *
 * Ownership. Whoever allocates frees; nothing allocated on one side is freed on the other. Pointers
 * that a call passes are valid until it returns, unless the entry says otherwise.
 *
 * Errors. A call that can fail returns MGE_OK or another MgeStatus, and writes text into the caller's
 * MgeError (never NULL). No exception, signal or longjmp leaves a call; nothing aborts.
 *
 * Threads. The host may call any entry from any thread, and several at once, unless it says otherwise.
 * For one stream, and for one event, the host makes one call at a time.
 */
#ifndef MGE_PLUGIN_H
#define MGE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MGE_ABI_MAJOR 1
#define MGE_ABI_MINOR 0
#ifndef MGE_TARGET_ABI_MINOR
#define MGE_TARGET_ABI_MINOR 0
#endif
#if MGE_TARGET_ABI_MINOR > MGE_ABI_MINOR
#error "MGE_TARGET_ABI_MINOR is newer than this header"
#endif

#if defined(_WIN32)
#define MGE_EXPORT __declspec(dllexport)
#define MGE_HIDDEN
#else
#define MGE_EXPORT __attribute__((visibility("default")))
#define MGE_HIDDEN __attribute__((visibility("hidden")))
#endif

/* Whether a table or struct that starts with `struct_size` has an entry, and it is not NULL or 0. */
#define MGE_HAS(table, field) (MGE_COVERS(table, field) && (table)->field)
/* The same for entries of which 0 is a value. */
#define MGE_COVERS(table, field)                                                             \
  ((size_t)((const char*)&(table)->field - (const char*)(table)) + sizeof((table)->field) <= \
   (size_t)(table)->struct_size)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ---- */

typedef enum MgeStatus {
  MGE_OK = 0,
  MGE_FAILED = 1,          /* anything not below; the message says what */
  MGE_UNSUPPORTED = 2,     /* from prepare and compile: not for these types, the message says why */
  MGE_OUT_OF_MEMORY = 3,   /* the host frees what it caches and may call again */
  MGE_BAD_ARGUMENT = 4,    /* an attribute or a value out of its range */
  MGE_INDEX_RANGE = 5,     /* an index read from a tensor points outside its axis */
  MGE_DEVICE_LOST = 6      /* the device is gone for the rest of the process */
} MgeStatus;

typedef struct MgeError {
  uint32_t struct_size;
  int32_t code;       /* MgeStatus; the callee sets it to what it returns */
  char message[504];  /* UTF-8, ends with 0 */
} MgeError;

/* ---- Tensors: DLPack's layout (DLDevice, DLDataType, DLTensor of DLPack 1.x) under our names ---- */

typedef struct MgeDevice {
  int32_t type;  /* DLPack's number: 1 the host's memory, 2 CUDA, ..., 12 any other device */
  int32_t index;
} MgeDevice;

typedef enum MgeTypeCode {
  MGE_INT = 0,
  MGE_UINT = 1,
  MGE_FLOAT = 2,
  MGE_BFLOAT = 4,
  MGE_BOOL = 6
} MgeTypeCode;

typedef struct MgeDataType {
  uint8_t code;    /* MgeTypeCode */
  uint8_t bits;    /* of one element */
  uint16_t lanes;  /* 1 */
} MgeDataType;

typedef struct MgeTensor {
  void* data;            /* NULL where the tensor has no elements */
  MgeDevice device;
  int32_t ndim;
  MgeDataType dtype;
  int64_t* shape;        /* `ndim` numbers; valid as long as the kernel that the tensor is passed to */
  int64_t* strides;      /* in elements; NULL: dense, row-major */
  uint64_t byte_offset;  /* of the first element from `data`; 0 from this host */
} MgeTensor;

/* ---- Descriptions: what the host asks about. It owns them; they are valid during the call. ---- */

typedef struct MgeTensorType {
  MgeDataType dtype;
  int32_t ndim;
  const int64_t* shape;
} MgeTensorType;

struct MgeGraph;

typedef enum MgeAttrKind {
  MGE_ATTR_NONE = 0,    /* Python's None */
  MGE_ATTR_INT = 1,     /* value.i */
  MGE_ATTR_FLOAT = 2,   /* value.f */
  MGE_ATTR_BOOL = 3,    /* value.i, 0 or 1 */
  MGE_ATTR_STRING = 4,  /* value.s, UTF-8; `count` bytes, then a 0 */
  MGE_ATTR_DTYPE = 5,   /* value.dtype */
  MGE_ATTR_BYTES = 6,   /* value.bytes; `count` bytes */
  MGE_ATTR_GRAPH = 7,   /* value.graph */
  /* Tuples of `count` items; an empty tuple is MGE_ATTR_INTS with `count` 0. */
  MGE_ATTR_INTS = 8,
  MGE_ATTR_FLOATS = 9,
  MGE_ATTR_BOOLS = 10,  /* value.ints, each 0 or 1 */
  MGE_ATTR_STRINGS = 11,
  MGE_ATTR_DTYPES = 12
} MgeAttrKind;

typedef struct MgeAttr {
  const char* name;
  uint32_t kind;   /* MgeAttrKind; refuse in `supports` what you do not know */
  uint32_t count;
  union {
    int64_t i;
    double f;
    const char* s;
    MgeDataType dtype;
    const uint8_t* bytes;
    const struct MgeGraph* graph;
    const int64_t* ints;
    const double* floats;
    const char* const* strings;
    const MgeDataType* dtypes;
  } value;
} MgeAttr;

typedef enum MgeOpFlags {
  MGE_OP_TUNE = 1,          /* prepare may time algorithms, and store its choice with tuning_put */
  MGE_OP_DETERMINISTIC = 2  /* only algorithms that add in the order of the reference */
} MgeOpFlags;

/* One use of an op. Types are fixed: another shape is another use. */
typedef struct MgeOp {
  uint32_t struct_size;
  uint32_t op_version;           /* of the op's meaning; 1 so far */
  const char* name;              /* "conv"; ops of plugins carry their namespace, "vision::nms" */
  const MgeAttr* attrs;
  const MgeTensorType* inputs;
  const MgeTensorType* outputs;  /* all outputs of the op, needed or not */
  uint32_t attr_count;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t flags;                /* MgeOpFlags */
  const MgeTensor* const* constants; /* (optional) one entry an input: its value in the host's memory
                                      * where it is known and never changes, else NULL; prepare only. In-place
                                      * pairs must not depend on it. The input is passed to run all the same. */
} MgeOp;

typedef struct MgeValue {
  MgeTensorType type;
  const void* constant;  /* (optional) dense bytes in the host's memory; valid during the call */
} MgeValue;

typedef struct MgeNode {
  const MgeOp* op;
  const uint32_t* inputs;   /* `op->input_count` indices of values */
  const uint32_t* outputs;  /* `op->output_count` of them */
} MgeNode;

/* A part of a graph, with fixed shapes. Nodes come in an order in which they can run. */
typedef struct MgeGraph {
  uint32_t struct_size;
  uint32_t value_count;
  uint32_t node_count;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t reserved;
  const MgeValue* values;
  const MgeNode* nodes;
  const uint32_t* inputs;   /* indices of values */
  const uint32_t* outputs;
} MgeGraph;

/* ---- What the backend answers ---- */

typedef enum MgeDeviceFlags {
  MGE_DEVICE_HOST_MEMORY = 1  /* the host reads and writes the device's memory through plain pointers */
} MgeDeviceFlags;

typedef struct MgeDeviceInfo {
  uint32_t struct_size;  /* set by the host; the rest is 0 when device_info is called */
  uint32_t flags;        /* MgeDeviceFlags */
  int32_t dlpack_type;   /* 0 counts as 1 with MGE_DEVICE_HOST_MEMORY, else as 12 */
  uint32_t stream_count; /* how many streams are worth using; 0 counts as 1 */
  uint64_t memory_bytes; /* 0: not known */
  char name[128];        /* "Acme A1 (rev 2)" */
  const char* capabilities; /* (optional) a JSON object; valid as long as the library is loaded */
} MgeDeviceInfo;

typedef enum MgeKernelFlags {
  MGE_KERNEL_STRIDED_OK = 1,   /* inputs may have `strides` */
  MGE_KERNEL_OPTIONAL_OUT = 2, /* an output that nobody needs, but for the first, may be passed as NULL */
  MGE_KERNEL_PARALLEL = 4      /* run calls parallel_for */
} MgeKernelFlags;

typedef struct MgeInplacePair {
  uint32_t input;
  uint32_t output;  /* may be written over that input: same type, element by element */
} MgeInplacePair;

/* What `prepare` and `compile` tell. */
typedef struct MgeKernelInfo {
  uint32_t struct_size;     /* set by the host; the rest is 0 */
  uint32_t flags;           /* MgeKernelFlags */
  uint64_t workspace_bytes; /* scratch that each run gets, on the device, aligned to 64 bytes */
  const MgeInplacePair* inplace;  /* (optional) valid until release */
  uint32_t inplace_count;
  uint32_t reserved;
  const char* name;         /* (optional) as "conv_f32_avx2_winograd"; valid until release */
} MgeKernelInfo;

typedef enum MgeCopyKind {
  MGE_HOST_TO_DEVICE = 0,
  MGE_DEVICE_TO_HOST = 1,
  MGE_DEVICE_TO_DEVICE = 2  /* within one device */
} MgeCopyKind;

/* ---- The host's table. It is valid as long as the process lives. ---- */

/* Does items `begin` to `end` - 1. `worker` is in 0 .. thread_count - 1, and no two calls that run at
 * the same time for one parallel_for share it: use it to index scratch. */
typedef void (*MgeBody)(int64_t begin, int64_t end, int32_t worker, void* data);

typedef struct MgeHost {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  int32_t thread_count;      /* threads that parallel_for may use, the caller's included; constant */
  const char* core_version;
  /* Any thread. Levels: 0 error, 1 warning, 2 information, 3 detail. */
  void (*log)(int level, const char* plugin, const char* message);
  /* Calls `body` for items 0 .. count - 1 in chunks of `grain` (the last may be shorter), on the host's
   * threads and the caller; returns when all are done. Chunks depend on `count` and `grain` alone, never
   * on the number of threads, so sums made per chunk and added in the order of chunks have the same bits
   * on every run. A call inside `body` runs its chunks one after the other. `body` must not throw. */
  void (*parallel_for)(int64_t count, int64_t grain, MgeBody body, void* data);
  /* The tuning cache of this machine, shared by all processes. Keys are texts; start them with the
   * plugin's name and a version of your choices. get: copies at most *nbytes bytes into `value`, sets
   * *nbytes to the stored size and returns 1; or returns 0. Any thread; prepare time only: it locks. */
  int (*tuning_get)(const char* key, void* value, size_t* nbytes);
  void (*tuning_put)(const char* key, const void* value, size_t nbytes);
} MgeHost;

/* ---- The backend's table. It is valid as long as the process lives. ---- */

typedef struct MgeBackend {
  uint32_t struct_size;    /* these four: MGE_BACKEND_VERSION */
  uint32_t abi_major;
  uint32_t abi_minor;
  uint32_t min_host_minor;
  const char* name;        /* the device type, "npu" in "npu:0" */
  const char* vendor;      /* who wants to hear of faults, "Acme Ltd." */
  const char* version;
  int32_t priority;        /* "auto" takes the highest; `ref` has 0: below it, only who is named */
  uint32_t reserved;

  /* How many devices there are; 0 where none works here. Never fails. */
  int32_t (*device_count)(void);
  int (*device_info)(int32_t device, MgeDeviceInfo* info, MgeError* error);

  /* Memory of a device. `alignment` is a power of two, at least 64. The host caches and counts; it frees
   * each block once, with the size it asked for, when no work that uses it is pending on `stream`. */
  int (*mem_alloc)(int32_t device, size_t nbytes, size_t alignment, void* stream, void** out,
                   MgeError* error);
  void (*mem_free)(int32_t device, void* memory, size_t nbytes, void* stream);
  /* Without streams, or with `stream` NULL, it is complete on return. */
  int (*mem_copy)(int32_t device, void* to, const void* from, size_t nbytes, MgeCopyKind kind,
                  void* stream, MgeError* error);

  /* 1: there is a kernel. 0: there is none, and `reason` (`capacity` bytes with the final 0) says why.
   * The answer depends on its arguments alone, and is cheap: placement asks for each node. */
  int (*supports)(int32_t device, const MgeOp* op, char* reason, size_t capacity);
  /* Makes a kernel for one use of an op: choose the algorithm, pack constants. A kernel never changes
   * after this. Runs of one kernel may overlap in time, each with a workspace of its own. */
  int (*prepare)(int32_t device, const MgeOp* op, void** kernel, MgeKernelInfo* info, MgeError* error);
  /* Runs it, or puts it on `stream` (NULL where the backend has no streams: then it is complete on
   * return). Tensors have the types that prepare was told. Inputs and outputs are dense, row-major;
   * buffers start at multiples of 64 bytes, views of them at multiples of their element. Outputs never
   * overlap inputs, but for the in-place pairs. Inputs are never written. */
  int (*run)(void* kernel, void* stream, const MgeTensor* const* inputs, MgeTensor* const* outputs,
             void* workspace, MgeError* error);
  /* The host calls it once, when no run is pending. */
  void (*release)(void* kernel);

  /* (optional, all or none) Streams: queues whose work runs in order, each beside the others. */
  int (*stream_create)(int32_t device, void** stream, MgeError* error);
  void (*stream_destroy)(void* stream);
  int (*stream_sync)(void* stream, MgeError* error);  /* waits; errors of queued work surface here */
  int (*event_create)(int32_t device, void** event, MgeError* error);
  void (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream, MgeError* error); /* marks the work queued so far */
  int (*event_wait)(void* event, void* stream, MgeError* error);   /* later work of `stream` waits */
  int (*event_sync)(void* event, MgeError* error);                 /* the calling thread waits */

  /* (optional, all or none) Whole subgraphs. compile: as prepare, for a graph; MGE_UNSUPPORTED with a
   * reason where it cannot. execute: as run, with the graph's inputs and outputs. */
  int (*compile)(int32_t device, const MgeGraph* graph, void** executable, MgeKernelInfo* info,
                 MgeError* error);
  int (*execute)(void* executable, void* stream, const MgeTensor* const* inputs,
                 MgeTensor* const* outputs, void* workspace, MgeError* error);
  void (*destroy)(void* executable);

#if MGE_TARGET_ABI_MINOR >= 1
  /* What 1.1 adds goes here, one such block for each minor version. */
#endif
} MgeBackend;

/* The first four entries of a table. */
#define MGE_BACKEND_VERSION \
  (uint32_t)sizeof(MgeBackend), MGE_ABI_MAJOR, MGE_TARGET_ABI_MINOR, MGE_TARGET_ABI_MINOR

/* The exported symbol. It returns the table, or NULL with the reason in `error`. */
#define MGE_ENTRY mge_backend_entry_v1
#define MGE_ENTRY_PREFIX "mge_backend_entry_v"
typedef const MgeBackend* (*MgeEntry)(const MgeHost* host, MgeError* error);

/* The host's table, in every file of the library; set before any other call. */
extern MGE_HIDDEN const MgeHost* mge_host;

/* Writes an error; returns `code`, so that `return mge_fail(error, ...)` is one line. */
static inline int mge_fail(MgeError* error, int code, const char* message) {
  error->code = code;
  snprintf(error->message, sizeof error->message, "%s", message);
  return code;
}

/* Whether the host is one that this library was compiled for; the entry function calls it. */
static inline int mge_accept_host(const MgeHost* host, MgeError* error) {
  const uint32_t needed = MGE_TARGET_ABI_MINOR; /* a variable: comparing with a literal 0 warns */
  if (host->abi_major == MGE_ABI_MAJOR && host->abi_minor >= needed) return 1;
  error->code = MGE_UNSUPPORTED;
  snprintf(error->message, sizeof error->message,
           "built for plugin ABI %d.%d or newer; this mge-core offers %u.%u", MGE_ABI_MAJOR,
           MGE_TARGET_ABI_MINOR, (unsigned)host->abi_major, (unsigned)host->abi_minor);
  return 0;
}

#ifdef __cplusplus
}
#define MGE_EXTERN_C extern "C"
#else
#define MGE_EXTERN_C
#endif

/* Once in the library: exports `table` (an MgeBackend), and defines `mge_host`. */
#define MGE_DEFINE_BACKEND(table)                                                               \
  const MgeHost* mge_host;                                                                      \
  MGE_EXTERN_C MGE_EXPORT const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error);    \
  MGE_EXTERN_C MGE_EXPORT const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error) {   \
    if (!mge_accept_host(host, error)) return NULL;                                             \
    mge_host = host;                                                                            \
    return &(table);                                                                            \
  }

#endif /* MGE_PLUGIN_H */
