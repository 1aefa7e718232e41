/* The smallest backend in C, made wrong or strange by macros: what the loader must tell apart. */
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#ifndef STRUCT_SIZE
#define STRUCT_SIZE sizeof(MgeBackend)
#endif
#ifndef MAJOR
#define MAJOR 1
#endif
#ifndef MINOR
#define MINOR 0
#endif
#ifndef MIN_HOST_MINOR
#define MIN_HOST_MINOR 0
#endif
#ifndef RUN
#define RUN run
#endif
#ifndef STREAM_SYNC
#define STREAM_SYNC NULL
#endif
#ifndef COMPILE
#define COMPILE NULL
#endif
#ifndef NAME
#define NAME "minimal"
#endif

static int32_t device_count(void) { return 1; }
static int device_info(int32_t device, MgeDeviceInfo* info, MgeError* error) {
  (void)device, (void)error;
  info->flags = MGE_DEVICE_HOST_MEMORY;
  return MGE_OK;
}
static int mem_alloc(int32_t device, size_t n, size_t alignment, void* stream, void** out, MgeError* error) {
  (void)device, (void)stream;
  *out = aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment);
  return *out ? MGE_OK : mge_fail(error, MGE_OUT_OF_MEMORY, "no");
}
static void mem_free(int32_t device, void* memory, size_t n, void* stream) {
  (void)device, (void)n, (void)stream;
  free(memory);
}
static int mem_copy(int32_t device, void* to, const void* from, size_t n, MgeCopyKind kind, void* stream, MgeError* e) {
  (void)device, (void)kind, (void)stream, (void)e;
  memcpy(to, from, n);
  return MGE_OK;
}
static int supports(int32_t device, const MgeOp* op, char* reason, size_t capacity) {
  (void)device;
  if (!strcmp(op->name, "neg") && op->inputs[0].dtype.code == MGE_FLOAT && op->inputs[0].dtype.bits == 32) return 1;
  snprintf(reason, capacity, "only neg of float32");
  return 0;
}
static int prepare(int32_t device, const MgeOp* op, void** kernel, MgeKernelInfo* info, MgeError* error) {
  int64_t* count = (int64_t*)malloc(sizeof *count);
  (void)device, (void)info, (void)error;
  *count = 1;
  for (int32_t i = 0; i < op->outputs[0].ndim; ++i) *count *= op->outputs[0].shape[i];
  *kernel = count;
  return MGE_OK;
}
static int run(void* kernel, void* stream, const MgeTensor* const* in, MgeTensor* const* out, void* ws, MgeError* e) {
  (void)stream, (void)ws, (void)e;
  for (int64_t i = 0; i < *(int64_t*)kernel; ++i) ((float*)out[0]->data)[i] = -((const float*)in[0]->data)[i];
  return MGE_OK;
}
static int stream_sync(void* stream, MgeError* error) { return (void)stream, (void)error, MGE_OK; }
static int compile(int32_t d, const MgeGraph* graph, void** out, MgeKernelInfo* info, MgeError* error) {
  (void)d, (void)info;
  if (graph->node_count != 2 || graph->value_count != 4 || graph->input_count != 1 || graph->output_count != 1)
    return mge_fail(error, MGE_UNSUPPORTED, "not this graph");
  if (strcmp(graph->nodes[0].op->name, "neg") || !graph->values[1].constant)
    return mge_fail(error, MGE_UNSUPPORTED, "not these nodes");
  *out = malloc(sizeof(float));
  *(float*)*out = *(const float*)graph->values[1].constant;
  return MGE_OK;
}
/* -x * constant */
static int execute(void* exe, void* stream, const MgeTensor* const* in, MgeTensor* const* out, void* ws, MgeError* e) {
  (void)stream, (void)ws, (void)e;
  for (int64_t i = 0; i < in[0]->shape[0]; ++i)
    ((float*)out[0]->data)[i] = -((const float*)in[0]->data)[i] * *(float*)exe;
  return MGE_OK;
}
static void destroy(void* exe) { free(exe); }
static void release(void* kernel) { free(kernel); }

static MgeBackend table;

#ifdef NO_ENTRY
int nothing_here(void) { return 0; }
#elif defined(OTHER_ENTRY)
MGE_EXPORT const MgeBackend* OTHER_ENTRY(const MgeHost* host, MgeError* error);
const MgeHost* mge_host;
const MgeBackend* OTHER_ENTRY(const MgeHost* host, MgeError* error) { return (void)host, (void)error, &table; }
#else
MGE_EXPORT const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error);
const MgeHost* mge_host;
const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error) {
  if (!mge_accept_host(host, error)) return NULL;
#ifdef REFUSES
  return mge_fail(error, MGE_FAILED, "driver 12 is older than 13"), (MgeBackend*)NULL;
#endif
  mge_host = host;
  MgeBackend made;
  memset(&made, 0, sizeof made);
  made.struct_size = (uint32_t)(STRUCT_SIZE);
  made.abi_major = MAJOR, made.abi_minor = MINOR, made.min_host_minor = MIN_HOST_MINOR;
  made.name = NAME, made.vendor = "Minimal Ltd.", made.version = "0", made.priority = -1;
  made.device_count = device_count, made.device_info = device_info;
  made.mem_alloc = mem_alloc, made.mem_free = mem_free, made.mem_copy = mem_copy;
  made.supports = supports, made.prepare = prepare, made.run = RUN, made.release = release;
  made.stream_sync = STREAM_SYNC;
#ifdef GRAPHS
  made.compile = compile, made.execute = execute, made.destroy = destroy;
#else
  made.compile = COMPILE;
  (void)execute, (void)destroy;
#endif
  (void)run, (void)stream_sync, (void)compile;
  memcpy(&table, &made, sizeof made);
  return &table;
}
#endif
