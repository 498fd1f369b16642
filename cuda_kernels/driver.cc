// What the installed driver can run, for whoever wants to know before the first kernel does.

#include <fusewheel/export.h>

#if FUSEWHEEL_EMULATED

FUSEWHEEL_EXPORT int fusewheel_cuda_driver_version() { return 0; }

#else

#include <cuda_runtime_api.h>

// The newest CUDA the driver supports, 13000 for 13.0; 0 without a driver.
FUSEWHEEL_EXPORT int fusewheel_cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

#endif
