/* A backend that takes whole graphs of neg, add, sub and mul of float32; the numbers of one shape, or scalars. */
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

enum { MOST = 12 }; /* nodes of a graph */

typedef struct Step {
  char op; /* 'n', '+', '-', '*' */
  uint32_t x, y, to;
} Step;

/* Values that are no inputs and no constants are in the workspace. */
typedef struct Program {
  int64_t count; /* of elements of what is not a scalar */
  uint32_t value_count, step_count;
  Step steps[MOST];
  float* constant[4 * MOST]; /* or NULL */
  char is_scalar[4 * MOST];
  uint32_t input_count, output_count, inputs[4 * MOST], outputs[4 * MOST];
} Program;

static char code(const char* name) {
  const char *names[] = {"neg", "add", "sub", "mul"}, *codes = "n+-*";
  for (int i = 0; i < 4; ++i)
    if (!strcmp(name, names[i])) return codes[i];
  return 0;
}
static int64_t size(const MgeTensorType* type) {
  int64_t n = 1;
  for (int32_t i = 0; i < type->ndim; ++i) n *= type->shape[i];
  return n;
}

static int32_t device_count(void) { return 1; }
static int device_info(int32_t device, MgeDeviceInfo* info, MgeError* error) {
  (void)device, (void)error;
  info->flags = MGE_DEVICE_HOST_MEMORY;
  info->capabilities = "{\"min_nodes\": 3}";
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
  int fits = code(op->name) && op->outputs[0].dtype.code == MGE_FLOAT && op->outputs[0].dtype.bits == 32;
  for (uint32_t i = 0; fits && i < op->input_count; ++i) {
    int64_t n = size(&op->inputs[i]);
    fits = (n == size(&op->outputs[0]) && op->inputs[i].ndim == op->outputs[0].ndim) || op->inputs[i].ndim == 0;
  }
  if (!fits) snprintf(reason, capacity, "no kernel");
  return fits;
}
static int compile(int32_t d, const MgeGraph* graph, void** out, MgeKernelInfo* info, MgeError* error) {
  (void)d;
  if (graph->node_count > MOST) return mge_fail(error, MGE_UNSUPPORTED, "at most 12 nodes");
  Program* p = (Program*)calloc(1, sizeof *p);
  p->count = 1;
  p->value_count = graph->value_count;
  for (uint32_t v = 0; v < graph->value_count; ++v) {
    int64_t n = size(&graph->values[v].type);
    p->is_scalar[v] = graph->values[v].type.ndim == 0;
    if (!p->is_scalar[v]) p->count = n;
    if (graph->values[v].constant) {
      p->constant[v] = (float*)malloc(sizeof(float) * (size_t)n);
      memcpy(p->constant[v], graph->values[v].constant, sizeof(float) * (size_t)n);
    }
  }
  for (uint32_t i = 0; i < graph->node_count; ++i) {
    const MgeNode* node = &graph->nodes[i];
    p->steps[p->step_count++] =
        (Step){code(node->op->name), node->inputs[0], node->inputs[node->op->input_count - 1], node->outputs[0]};
  }
  p->input_count = graph->input_count, p->output_count = graph->output_count;
  memcpy(p->inputs, graph->inputs, sizeof *p->inputs * p->input_count);
  memcpy(p->outputs, graph->outputs, sizeof *p->outputs * p->output_count);
  info->workspace_bytes = sizeof(float) * (uint64_t)(p->count * p->value_count);
  info->name = "whole_f32";
  *out = p;
  return MGE_OK;
}
static int execute(void* exe, void* stream, const MgeTensor* const* in, MgeTensor* const* out, void* ws, MgeError* e) {
  (void)stream, (void)e;
  Program* p = (Program*)exe;
  float* memory[4 * MOST];
  for (uint32_t v = 0; v < p->value_count; ++v) memory[v] = p->constant[v] ? p->constant[v] : (float*)ws + p->count * v;
  for (uint32_t i = 0; i < p->input_count; ++i) memory[p->inputs[i]] = (float*)in[i]->data;
  for (uint32_t i = 0; i < p->step_count; ++i) {
    Step s = p->steps[i];
    for (int64_t k = 0; k < (p->is_scalar[s.to] ? 1 : p->count); ++k) {
      float x = memory[s.x][p->is_scalar[s.x] ? 0 : k], y = memory[s.y][p->is_scalar[s.y] ? 0 : k];
      memory[s.to][k] = s.op == 'n' ? -x : s.op == '+' ? x + y : s.op == '-' ? x - y : x * y;
    }
  }
  for (uint32_t i = 0; i < p->output_count; ++i) {
    uint32_t v = p->outputs[i];
    memcpy(out[i]->data, memory[v], sizeof(float) * (size_t)(p->is_scalar[v] ? 1 : p->count));
  }
  return MGE_OK;
}
static void destroy(void* exe) {
  for (uint32_t v = 0; v < 4 * MOST; ++v) free(((Program*)exe)->constant[v]);
  free(exe);
}

/* One op: a graph of one node, but for the constants. */
static int prepare(int32_t device, const MgeOp* op, void** kernel, MgeKernelInfo* info, MgeError* error) {
  uint32_t indices[3] = {0, 1, 2};
  MgeValue values[3] = {{op->inputs[0], NULL}, {op->inputs[op->input_count - 1], NULL}, {op->outputs[0], NULL}};
  if (op->input_count == 1) values[1] = values[2];
  MgeNode node = {op, indices, indices + op->input_count};
  MgeGraph graph = {sizeof graph, op->input_count + 1, 1, op->input_count, 1, 0, values, &node,
                    indices, indices + op->input_count};
  return compile(device, &graph, kernel, info, error);
}

static MgeBackend table;

MGE_EXPORT const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error);
const MgeBackend* MGE_ENTRY(const MgeHost* host, MgeError* error) {
  if (!mge_accept_host(host, error)) return NULL;
  MgeBackend made;
  memset(&made, 0, sizeof made);
  made.struct_size = (uint32_t)sizeof made, made.abi_major = MGE_ABI_MAJOR;
  made.name = "whole", made.vendor = "Whole Ltd.", made.version = "1", made.priority = -1;
  made.device_count = device_count, made.device_info = device_info;
  made.mem_alloc = mem_alloc, made.mem_free = mem_free, made.mem_copy = mem_copy;
  made.supports = supports, made.prepare = prepare, made.run = execute, made.release = destroy;
  made.compile = compile, made.execute = execute, made.destroy = destroy;
  memcpy(&table, &made, sizeof made);
  return &table;
}
