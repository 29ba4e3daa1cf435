// What CUDA adds to C++ and the kernels use, for a clang without the toolkit's headers (tests/kernels.sh).
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __syncthreads() __nvvm_bar_sync(0)

struct uint4 {
  unsigned x, y, z, w;
};
struct cuda_index {
  unsigned x;
};
extern const __device__ cuda_index threadIdx, blockIdx, gridDim;

__device__ int atomicAdd(int *, int);
__device__ float __int_as_float(int);
__device__ float __uint_as_float(unsigned);
__device__ unsigned __float_as_uint(float);
__device__ unsigned long long __umul64hi(unsigned long long, unsigned long long);
__device__ bool isnan(float);
__device__ int max(int, int);
__device__ double fmax(double, double);
__device__ double exp(double);
__device__ double log(double);
__device__ double pow(double, double);
__device__ double sqrt(double);
__device__ double sin(double);
__device__ double cos(double);
__device__ double erfc(double);
