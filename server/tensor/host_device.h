// Marks functions that run on the host and inside CUDA kernels: the same text gives the same bits
// on every device.
#pragma once

#ifdef __CUDACC__
#define DEVSERVER_HOST_DEVICE __host__ __device__
#else
#define DEVSERVER_HOST_DEVICE
#endif
