// Adds two vectors on the first GPU and checks each sum. Prints the lines of the sample of this name, as the validator's
// image has it, and the GPU's name. An argument is a number of seconds for which it keeps the GPU's memory afterwards.

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

static const int COUNT = 50000, THREADS = 256;
static const int BLOCKS = (COUNT + THREADS - 1) / THREADS;

__global__ void add(const float *left, const float *right, float *sums) {
    const int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < COUNT) sums[place] = left[place] + right[place];
}

static void must(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "Failed to %s (error code %s)!\n", what, cudaGetErrorString(code));
    exit(EXIT_FAILURE);
}

static float left[COUNT], right[COUNT], sums[COUNT];

int main(int count, char **words) {
    printf("[Vector addition of %d elements]\n", COUNT);
    fflush(stdout);
    for (int place = 0; place < COUNT; place++) {
        left[place] = rand() / (float)RAND_MAX;
        right[place] = rand() / (float)RAND_MAX;
    }

    float *on_gpu[3];
    for (int vector = 0; vector < 3; vector++) {
        const char *what[] = {"allocate device vector A", "allocate device vector B", "allocate device vector C"};
        must(cudaMalloc(&on_gpu[vector], sizeof sums), what[vector]);
    }
    cudaDeviceProp gpu;
    must(cudaGetDeviceProperties(&gpu, 0), "read the properties of the device");
    printf("Device 0: %s, compute capability %d.%d\n", gpu.name, gpu.major, gpu.minor);

    puts("Copy input data from the host memory to the CUDA device");
    must(cudaMemcpy(on_gpu[0], left, sizeof left, cudaMemcpyHostToDevice), "copy vector A from host to device");
    must(cudaMemcpy(on_gpu[1], right, sizeof right, cudaMemcpyHostToDevice), "copy vector B from host to device");
    printf("CUDA kernel launch with %d blocks of %d threads\n", BLOCKS, THREADS);
    add<<<BLOCKS, THREADS>>>(on_gpu[0], on_gpu[1], on_gpu[2]);
    must(cudaGetLastError(), "launch vectorAdd kernel");
    puts("Copy output data from the CUDA device to the host memory");
    must(cudaMemcpy(sums, on_gpu[2], sizeof sums, cudaMemcpyDeviceToHost), "copy vector C from device to host");

    for (int place = 0; place < COUNT; place++) {
        if (sums[place] == left[place] + right[place]) continue;
        fprintf(stderr, "Result verification failed at element %d!\n", place);
        return EXIT_FAILURE;
    }
    puts("Test PASSED");
    fflush(stdout);
    if (count > 1) sleep(atoi(words[1]));
    for (int vector = 0; vector < 3; vector++) must(cudaFree(on_gpu[vector]), "free a device vector");
    puts("Done");
    return EXIT_SUCCESS;
}
