// What NVTX loads in the place of a profiler: it prints where ranges begin and end.

#include <nvtx3/nvToolsExt.h>

#include <stdio.h>

static int begin(const char* name) {
  printf("begin %s\n", name);
  fflush(stdout);
  return 0;
}

static int end(void) {
  puts("end");
  fflush(stdout);
  return 0;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks* callbacks = get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable functions;
  unsigned count;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count)) {
    return 0;
  }
  *functions[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)begin;
  *functions[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)end;
  return 1;
}
