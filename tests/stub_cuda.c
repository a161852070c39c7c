/* A libcuda.so.1 without a device, for tests/test_gpu_drivers.py: NVIDIA's own header checks its
   signatures, and each call writes its arguments as one line to the file that STUB_LOG names. The
   function that STUB_FAIL names fails. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) CUresult CUDAAPI
#define WORD(x) ((unsigned long long)(size_t)(x))
/* Handles are large, so that one that lost its upper half is seen. */
#define BASE 0x5500000000ull
#define NUMBER(x) (WORD(x) - BASE)

static CUresult said(const char *name, const char *format, ...) {
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
    return (CUresult)atoi(colon + 1);
  return CUDA_SUCCESS;
}

/* A kernel's arguments: three pointers. */
static void packed(char *text, void **params) {
  sprintf(text, "%llx,%llx,%llx", *(unsigned long long *)params[0],
          *(unsigned long long *)params[1], *(unsigned long long *)params[2]);
}

API cuInit(unsigned int flags) { return said("cuInit", "%u", flags); }
API cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
API cuGetErrorName(CUresult error, const char **text) {
  *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
API cuGetErrorString(CUresult error, const char **text) {
  *text = error == 2 ? "out of memory" : "something else";
  return CUDA_SUCCESS;
}
API cuDeviceGetCount(int *count) { *count = 2; return said("cuDeviceGetCount", ""); }
API cuDeviceGet(CUdevice *device, int ordinal) {
  *device = 10 + ordinal;
  return said("cuDeviceGet", "%d", ordinal);
}
API cuDeviceGetName(char *name, int size, CUdevice device) {
  snprintf(name, (size_t)size, "Stub");
  return said("cuDeviceGetName", "%d %d", size, device);
}
API cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  *bytes = 1 << 20;
  return said("cuDeviceTotalMem", "%d", device);
}
API cuDeviceGetAttribute(int *value, CUdevice_attribute kind, CUdevice device) {
  *value = kind == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 9
           : kind == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
           : kind == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 132
           : kind == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE            ? 4096
                                                                  : -1;
  return said("cuDeviceGetAttribute", "%d %d", kind, device);
}
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)(BASE + 0x100);
  return said("cuDevicePrimaryCtxRetain", "%d", device);
}
API cuCtxPushCurrent(CUcontext context) {
  return said("cuCtxPushCurrent", "%llx", NUMBER(context));
}
API cuCtxPopCurrent(CUcontext *context) {
  *context = (CUcontext)(BASE + 0x100);
  return said("cuCtxPopCurrent", "");
}
API cuCtxSynchronize(void) { return said("cuCtxSynchronize", ""); }
API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *p) {
  *pool = (CUmemoryPool)(BASE + 0x200);
  return said("cuMemPoolCreate", "%d %d %d %d %zu", p->allocType, p->handleTypes,
              p->location.type, p->location.id, p->maxSize);
}
API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute kind, void *value) {
  return said("cuMemPoolSetAttribute", "%llx %d %llu", NUMBER(pool), kind, *(cuuint64_t *)value);
}
API cuMemPoolTrimTo(CUmemoryPool pool, size_t size) {
  return said("cuMemPoolTrimTo", "%llx %zu", NUMBER(pool), size);
}
API cuMemAllocFromPoolAsync(CUdeviceptr *made, size_t size, CUmemoryPool pool, CUstream stream) {
  *made = 0x7f0000000000ull;
  return said("cuMemAllocFromPoolAsync", "%zu %llx %llx", size, NUMBER(pool), NUMBER(stream));
}
API cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return said("cuMemFreeAsync", "%llx %llx", WORD(address), NUMBER(stream));
}
API cuMemHostAlloc(void **made, size_t size, unsigned int flags) {
  *made = (void *)0x7e0000000000ull;
  return said("cuMemHostAlloc", "%zu %u", size, flags);
}
API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  return said("cuMemcpyHtoDAsync", "%llx %llx %zu %llx", WORD(to), WORD(from), size, NUMBER(stream));
}
API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  return said("cuMemcpyDtoHAsync", "%llx %llx %zu %llx", WORD(to), WORD(from), size, NUMBER(stream));
}
API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return said("cuMemcpyDtoDAsync", "%llx %llx %zu %llx", WORD(to), WORD(from), size, NUMBER(stream));
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t size, CUstream stream) {
  return said("cuMemsetD8Async", "%llx %d %zu %llx", WORD(to), byte, size, NUMBER(stream));
}
API cuStreamCreate(CUstream *stream, unsigned int flags) {
  *stream = (CUstream)(BASE + 0x300);
  return said("cuStreamCreate", "%u", flags);
}
API cuStreamSynchronize(CUstream stream) {
  return said("cuStreamSynchronize", "%llx", NUMBER(stream));
}
API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return said("cuStreamWaitEvent", "%llx %llx %u", NUMBER(stream), NUMBER(event), flags);
}
API cuEventCreate(CUevent *event, unsigned int flags) {
  *event = (CUevent)(BASE + 0x400ull + flags);
  return said("cuEventCreate", "%u", flags);
}
API cuEventDestroy(CUevent event) { return said("cuEventDestroy", "%llx", NUMBER(event)); }
API cuEventRecord(CUevent event, CUstream stream) {
  return said("cuEventRecord", "%llx %llx", NUMBER(event), NUMBER(stream));
}
API cuEventSynchronize(CUevent event) { return said("cuEventSynchronize", "%llx", NUMBER(event)); }
API cuEventQuery(CUevent event) { return said("cuEventQuery", "%llx", NUMBER(event)); }
API cuEventElapsedTime(float *milliseconds, CUevent first, CUevent last) {
  *milliseconds = 2.5f;
  return said("cuEventElapsedTime", "%llx %llx", NUMBER(first), NUMBER(last));
}
API cuModuleLoadData(CUmodule *module, const void *image) {
  *module = (CUmodule)(BASE + 0x500);
  return said("cuModuleLoadData", "%.3s", (const char *)image + 1);
}
API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                       CUjit_option *kinds, void **values) {
  *module = (CUmodule)(BASE + 0x501);
  if (count == 2) strcpy(values[0], "line 3: no such instruction");
  return said("cuModuleLoadDataEx", "%s %u %d %d %llu", (const char *)image, count, kinds[0],
              kinds[1], WORD(values[1]));
}
API cuModuleUnload(CUmodule module) { return said("cuModuleUnload", "%llx", NUMBER(module)); }
API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)(BASE + 0x600);
  return said("cuModuleGetFunction", "%llx %s", NUMBER(module), name);
}
API cuFuncSetAttribute(CUfunction function, CUfunction_attribute kind, int value) {
  return said("cuFuncSetAttribute", "%llx %d %d", NUMBER(function), kind, value);
}
API cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                   unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                   CUstream stream, void **params, void **extra) {
  char text[80];
  packed(text, params);
  return said("cuLaunchKernel", "%llx %u %u %u %u %u %u %u %llx %s %llx", NUMBER(f), gx, gy, gz, bx,
              by, bz, shared, NUMBER(stream), text, WORD(extra));
}
API cuGraphCreate(CUgraph *graph, unsigned int flags) {
  *graph = (CUgraph)(BASE + 0x700);
  return said("cuGraphCreate", "%u", flags);
}
static CUresult node_said(const char *name, unsigned long long graph, unsigned long long node,
                          const CUDA_KERNEL_NODE_PARAMS *p) {
  char text[80];
  packed(text, p->kernelParams);
  return said(name, "%llx %llx %llx %u %u %u %u %u %u %u %s %llx", graph, node, NUMBER(p->func),
              p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ,
              p->sharedMemBytes, text, WORD(p->extra));
}
API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                         const CUDA_KERNEL_NODE_PARAMS *params) {
  static unsigned long long next = 0x800;
  *node = (CUgraphNode)(BASE + next++);
  return node_said("cuGraphAddKernelNode", NUMBER(graph), count ? NUMBER(before[0]) : 0, params);
}
API cuGraphInstantiate(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
  *made = (CUgraphExec)(BASE + 0x900);
  return said("cuGraphInstantiate", "%llx %llu", NUMBER(graph), flags);
}
API cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                   const CUDA_KERNEL_NODE_PARAMS *params) {
  return node_said("cuGraphExecKernelNodeSetParams", NUMBER(graph), NUMBER(node), params);
}
API cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return said("cuGraphLaunch", "%llx %llx", NUMBER(graph), NUMBER(stream));
}
API cuGraphExecDestroy(CUgraphExec graph) {
  return said("cuGraphExecDestroy", "%llx", NUMBER(graph));
}
API cuGraphDestroy(CUgraph graph) { return said("cuGraphDestroy", "%llx", NUMBER(graph)); }

/* The package asks for functions by their names without a version. */
API cuGetProcAddress(const char *symbol, void **found, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
  static const char *endings[] = {"", "_v2", "_v3"};
  char name[128];
  Dl_info self;
  (void)version, (void)flags;
  *found = 0;
  dladdr((void *)cuInit, &self);
  void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  const char *plain = strcmp(symbol, "cuGraphInstantiate") ? symbol : "cuGraphInstantiateWithFlags";
  for (int i = 0; i < 3 && !*found; i++) {
    snprintf(name, sizeof name, "%s%s", plain, endings[i]);
    *found = dlsym(library, name);
  }
  if (status)
    *status = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
