/* A libamdhip64.so without a device, for tests/test_gpu_drivers.py: each call writes its arguments
   as one line to the file that STUB_LOG names, and the function that STUB_FAIL names fails. With
   -DHIP_HEADER, AMD's own header checks the signatures; without, those below stand for it. */
#ifdef HIP_HEADER
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#else
#include <stddef.h>
typedef int hipError_t, hipDevice_t, hipDeviceAttribute_t, hipMemPoolAttr;
typedef void *hipDeviceptr_t, *hipStream_t, *hipEvent_t, *hipModule_t, *hipFunction_t;
typedef void *hipMemPool_t, *hipGraph_t, *hipGraphNode_t, *hipGraphExec_t;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { char text[2048]; } hipDeviceProp_t;
typedef struct {
  dim3 blockDim;
  void **extra;
  void *func;
  dim3 gridDim;
  void **kernelParams;
  unsigned int sharedMemBytes;
} hipKernelNodeParams;
typedef struct {
  int allocType, handleTypes;
  struct { int type, id; } location;
  void *win32SecurityAttributes;
  unsigned char reserved[64];
} hipMemPoolProps;
#endif
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) hipError_t
#define WORD(x) ((unsigned long long)(size_t)(x))
/* Handles are large, so that one that lost its upper half is seen. */
#define BASE 0x5500000000ull
#define NUMBER(x) (WORD(x) - BASE)
#define HANDLE(x) ((void *)(size_t)(x))

static hipError_t said(const char *name, const char *format, ...) {
  static FILE *log;
  if (!log) log = fopen(getenv("STUB_LOG"), "a");
  va_list rest;
  va_start(rest, format);
  fprintf(log, "%s ", name);
  vfprintf(log, format, rest);
  fputc('\n', log);
  fflush(log);
  va_end(rest);
  const char *failing = getenv("STUB_FAIL"), *colon = failing ? strchr(failing, ':') : 0;
  if (colon && strlen(name) == (size_t)(colon - failing) && !strncmp(name, failing, strlen(name)))
    return (hipError_t)atoi(colon + 1);
  return (hipError_t)0;
}

/* A kernel's arguments: three pointers. */
static void packed(char *text, void **params) {
  sprintf(text, "%llx,%llx,%llx", *(unsigned long long *)params[0],
          *(unsigned long long *)params[1], *(unsigned long long *)params[2]);
}

const char *hipGetErrorName(hipError_t error) {
  return error == 2 ? "hipErrorOutOfMemory" : "hipErrorOther";
}
const char *hipGetErrorString(hipError_t error) {
  return error == 2 ? "out of memory" : "something else";
}
API hipInit(unsigned int flags) { return said("hipInit", "%u", flags); }
API hipGetDeviceCount(int *count) { *count = 2; return said("hipGetDeviceCount", ""); }
API hipDeviceGetName(char *name, int size, hipDevice_t device) {
  snprintf(name, (size_t)size, "Stub");
  return said("hipDeviceGetName", "%d %d", size, device);
}
API hipDeviceTotalMem(size_t *bytes, hipDevice_t device) {
  *bytes = 1 << 20;
  return said("hipDeviceTotalMem", "%d", device);
}
API hipDeviceGetAttribute(int *value, hipDeviceAttribute_t kind, int device) {
#ifdef HIP_HEADER
  *value = kind == hipDeviceAttributeMultiprocessorCount ? 304 : 0;
  if (kind == hipDeviceAttributeL2CacheSize) *value = 4096;
#else
  *value = kind == 63 ? 304 : kind == 19 ? 4096 : 0;
#endif
  return said("hipDeviceGetAttribute", "%d %d", kind, device);
}
API hipGetDeviceProperties(hipDeviceProp_t *properties, int device) {
#ifdef HIP_HEADER
  strcpy(properties->gcnArchName, "gfx942:sramecc+:xnack-");
#else
  memset(properties, 0, sizeof *properties);
  strcpy(properties->text, "Stub");
  strcpy(properties->text + 700, "gfx942:sramecc+:xnack-");
#endif
  return said("hipGetDeviceProperties", "%d", device);
}
static int current;
API hipSetDevice(int device) { current = device; return said("hipSetDevice", "%d", device); }
API hipGetDevice(int *device) { *device = current; return said("hipGetDevice", ""); }
API hipDeviceSynchronize(void) { return said("hipDeviceSynchronize", ""); }
API hipMemPoolCreate(hipMemPool_t *pool, const hipMemPoolProps *p) {
  *pool = HANDLE(BASE + 0x200);
  return said("hipMemPoolCreate", "%d %d %d %d", p->allocType, p->handleTypes, p->location.type,
              p->location.id);
}
API hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr kind, void *value) {
  return said("hipMemPoolSetAttribute", "%llx %d %llu", NUMBER(pool), kind,
              *(unsigned long long *)value);
}
API hipMemPoolTrimTo(hipMemPool_t pool, size_t size) {
  return said("hipMemPoolTrimTo", "%llx %zu", NUMBER(pool), size);
}
API hipMallocFromPoolAsync(void **made, size_t size, hipMemPool_t pool, hipStream_t stream) {
  *made = HANDLE(0x7f0000000000ull);
  return said("hipMallocFromPoolAsync", "%zu %llx %llx", size, NUMBER(pool), NUMBER(stream));
}
API hipFreeAsync(void *address, hipStream_t stream) {
  return said("hipFreeAsync", "%llx %llx", WORD(address), NUMBER(stream));
}
API hipHostMalloc(void **made, size_t size, unsigned int flags) {
  *made = HANDLE(0x7e0000000000ull);
  return said("hipHostMalloc", "%zu %u", size, flags);
}
API hipMemcpyHtoDAsync(hipDeviceptr_t to, void *from, size_t size, hipStream_t stream) {
  return said("hipMemcpyHtoDAsync", "%llx %llx %zu %llx", WORD(to), WORD(from), size, NUMBER(stream));
}
API hipMemcpyDtoHAsync(void *to, hipDeviceptr_t from, size_t size, hipStream_t stream) {
  return said("hipMemcpyDtoHAsync", "%llx %llx %zu %llx", WORD(to), WORD(from), size, NUMBER(stream));
}
API hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t size, hipStream_t stream) {
  return said("hipMemcpyDtoDAsync", "%llx %llx %zu %llx", WORD(to), WORD(from), size, NUMBER(stream));
}
API hipMemsetD8Async(hipDeviceptr_t to, unsigned char byte, size_t size, hipStream_t stream) {
  return said("hipMemsetD8Async", "%llx %d %zu %llx", WORD(to), byte, size, NUMBER(stream));
}
API hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags) {
  *stream = HANDLE(BASE + 0x300);
  return said("hipStreamCreateWithFlags", "%u", flags);
}
API hipStreamSynchronize(hipStream_t stream) {
  return said("hipStreamSynchronize", "%llx", NUMBER(stream));
}
API hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
  return said("hipStreamWaitEvent", "%llx %llx %u", NUMBER(stream), NUMBER(event), flags);
}
API hipEventCreateWithFlags(hipEvent_t *event, unsigned flags) {
  *event = HANDLE(BASE + 0x400 + flags);
  return said("hipEventCreateWithFlags", "%u", flags);
}
API hipEventDestroy(hipEvent_t event) { return said("hipEventDestroy", "%llx", NUMBER(event)); }
API hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return said("hipEventRecord", "%llx %llx", NUMBER(event), NUMBER(stream));
}
API hipEventSynchronize(hipEvent_t event) {
  return said("hipEventSynchronize", "%llx", NUMBER(event));
}
API hipEventQuery(hipEvent_t event) { return said("hipEventQuery", "%llx", NUMBER(event)); }
API hipEventElapsedTime(float *milliseconds, hipEvent_t first, hipEvent_t last) {
  *milliseconds = 2.5f;
  return said("hipEventElapsedTime", "%llx %llx", NUMBER(first), NUMBER(last));
}
API hipModuleLoadData(hipModule_t *module, const void *image) {
  *module = HANDLE(BASE + 0x500);
  return said("hipModuleLoadData", "%.3s %d", (const char *)image + 1, ((const char *)image)[16]);
}
API hipModuleUnload(hipModule_t module) { return said("hipModuleUnload", "%llx", NUMBER(module)); }
API hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name) {
  *function = HANDLE(BASE + 0x600);
  return said("hipModuleGetFunction", "%llx %s", NUMBER(module), name);
}
API hipModuleLaunchKernel(hipFunction_t f, unsigned int gx, unsigned int gy, unsigned int gz,
                          unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                          hipStream_t stream, void **params, void **extra) {
  char text[80];
  packed(text, params);
  return said("hipModuleLaunchKernel", "%llx %u %u %u %u %u %u %u %llx %s %llx", NUMBER(f), gx, gy,
              gz, bx, by, bz, shared, NUMBER(stream), text, WORD(extra));
}
API hipGraphCreate(hipGraph_t *graph, unsigned int flags) {
  *graph = HANDLE(BASE + 0x700);
  return said("hipGraphCreate", "%u", flags);
}
static hipError_t node_said(const char *name, unsigned long long graph, unsigned long long node,
                            const hipKernelNodeParams *p) {
  char text[80];
  packed(text, p->kernelParams);
  return said(name, "%llx %llx %llx %u %u %u %u %u %u %u %s %llx", graph, node, NUMBER(p->func),
              p->gridDim.x, p->gridDim.y, p->gridDim.z, p->blockDim.x, p->blockDim.y,
              p->blockDim.z, p->sharedMemBytes, text, WORD(p->extra));
}
API hipGraphAddKernelNode(hipGraphNode_t *node, hipGraph_t graph, const hipGraphNode_t *before,
                          size_t count, const hipKernelNodeParams *params) {
  static unsigned long long next = 0x800;
  *node = HANDLE(BASE + next++);
  return node_said("hipGraphAddKernelNode", NUMBER(graph), count ? NUMBER(before[0]) : 0, params);
}
API hipGraphInstantiate(hipGraphExec_t *made, hipGraph_t graph, hipGraphNode_t *failed, char *log,
                        size_t size) {
  *made = HANDLE(BASE + 0x900);
  return said("hipGraphInstantiate", "%llx %llx %llx %zu", NUMBER(graph), WORD(failed), WORD(log),
              size);
}
API hipGraphExecKernelNodeSetParams(hipGraphExec_t graph, hipGraphNode_t node,
                                    const hipKernelNodeParams *params) {
  return node_said("hipGraphExecKernelNodeSetParams", NUMBER(graph), NUMBER(node), params);
}
API hipGraphLaunch(hipGraphExec_t graph, hipStream_t stream) {
  return said("hipGraphLaunch", "%llx %llx", NUMBER(graph), NUMBER(stream));
}
API hipGraphExecDestroy(hipGraphExec_t graph) {
  return said("hipGraphExecDestroy", "%llx", NUMBER(graph));
}
API hipGraphDestroy(hipGraph_t graph) { return said("hipGraphDestroy", "%llx", NUMBER(graph)); }
