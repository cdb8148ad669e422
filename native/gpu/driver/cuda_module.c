/* Modules, functions, occupancy and launches. */
#include <string.h>
#include "gpu/driver/cuda.h"
#include "core/internal.h"

enum { /* CUfunction_attribute */
       FUNCTION_THREADS = 0,
       FUNCTION_SHARED = 1,
       FUNCTION_LOCAL = 3,
       FUNCTION_REGISTERS = 4,
       FUNCTION_DYNAMIC_SHARED = 8,
       FUNCTION_CARVEOUT = 9,
};

_Static_assert(sizeof(struct pc_cuda_launch_attribute) == 72, "as CUlaunchAttribute is");
_Static_assert(sizeof(struct pc_cuda_launch_config) == 56, "as CUlaunchConfig is");

int pc_cuda_module(int device, const void *image, struct pc_error *error, uintptr_t *module)
{
    void *made = NULL;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.ModuleLoadData(&made, image);
    *module = (uintptr_t)made;
    return pc__cuda_leave(result, error, "cuModuleLoadData on GPU %d", device);
}

int pc_cuda_module_free(int device, uintptr_t module, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.ModuleUnload((void *)module), error, "cuModuleUnload(%#zx)",
                          (size_t)module);
}

int pc_cuda_function(int device, uintptr_t module, const char *name, struct pc_error *error,
                     uintptr_t *function)
{
    void *found = NULL;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int registers, result = pc__cuda.ModuleGetFunction(&found, (void *)module, name);
    /* With lazy loading a function may be loaded as late as at its first launch, which waits for
     * running kernels: maybe for one that waits for this launch. */
    if (result == 0)
        result = pc__cuda.FuncGetAttribute(&registers, FUNCTION_REGISTERS, found);
    *function = (uintptr_t)found;
    return pc__cuda_leave(result, error, "cuModuleGetFunction(%s)", name);
}

int pc_cuda_function_read(int device, uintptr_t function, struct pc_error *error,
                          struct pc_cuda_function *out)
{
    int result = 0;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    const struct {
        int which;
        int32_t *out;
    } wanted[] = {
        {FUNCTION_THREADS, &out->threads},
        {FUNCTION_REGISTERS, &out->registers},
        {FUNCTION_LOCAL, &out->local},
        {FUNCTION_SHARED, &out->shared},
        {FUNCTION_DYNAMIC_SHARED, &out->dynamic},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && result == 0; i++)
        result = pc__cuda.FuncGetAttribute(wanted[i].out, wanted[i].which, (void *)function);
    return pc__cuda_leave(result, error, "cuFuncGetAttribute(%#zx)", (size_t)function);
}

int pc_cuda_function_dynamic(int device, uintptr_t function, uint32_t nbytes,
                             struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.FuncSetAttribute((void *)function, FUNCTION_DYNAMIC_SHARED, (int)nbytes);
    return pc__cuda_leave(result, error, "cuFuncSetAttribute(%#zx, %u bytes of shared memory)",
                          (size_t)function, nbytes);
}

int pc_cuda_function_carveout(int device, uintptr_t function, uint32_t percent,
                              struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.FuncSetAttribute((void *)function, FUNCTION_CARVEOUT, (int)percent);
    return pc__cuda_leave(result, error, "cuFuncSetAttribute(%#zx, %u %% of shared memory)",
                          (size_t)function, percent);
}

int pc_cuda_occupancy(int device, uintptr_t function, uint32_t threads, size_t dynamic,
                      struct pc_error *error, int *blocks)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.OccupancyMaxActiveBlocksPerMultiprocessor(blocks, (void *)function,
                                                                    (int)threads, dynamic);
    return pc__cuda_leave(result, error, "cuOccupancyMaxActiveBlocksPerMultiprocessor(%#zx, %u)",
                          (size_t)function, threads);
}

int pc_cuda_room(int device, uintptr_t function, uint32_t blocks, uint32_t threads,
                 struct pc_error *error, size_t *dynamic)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.OccupancyAvailableDynamicSMemPerBlock(dynamic, (void *)function,
                                                                (int)blocks, (int)threads);
    return pc__cuda_leave(result, error, "cuOccupancyAvailableDynamicSMemPerBlock(%#zx, %u, %u)",
                          (size_t)function, blocks, threads);
}

int pc_cuda_launch(int device, const struct pc_cuda_grid *grid, void **arguments,
                   struct pc_error *error)
{
    struct pc_cuda_launch_attribute attributes[3];
    struct pc_cuda_launch_config config
        = {.shared = grid->shared, .stream = (void *)grid->stream, .attributes = attributes};
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    memset(attributes, 0, sizeof attributes);
    memcpy(config.blocks, grid->blocks, sizeof config.blocks);
    memcpy(config.threads, grid->threads, sizeof config.threads);
    if (grid->flags & PC_CUDA_COOPERATIVE) {
        attributes[config.nattributes].id = CUDA_LAUNCH_COOPERATIVE;
        attributes[config.nattributes++].value.cooperative = 1;
    }
    if (grid->flags & PC_CUDA_REMOTE) {
        attributes[config.nattributes].id = CUDA_LAUNCH_SYNC_DOMAIN;
        attributes[config.nattributes++].value.sync_domain = CUDA_SYNC_DOMAIN_REMOTE;
    }
    if (grid->flags & PC_CUDA_PRIORITY) {
        attributes[config.nattributes].id = CUDA_LAUNCH_PRIORITY;
        attributes[config.nattributes++].value.priority = grid->priority;
    }
    int result = pc__cuda.LaunchKernelEx(&config, (void *)grid->function, arguments, NULL);
    return pc__cuda_leave(result, error, "cuLaunchKernelEx(%#zx, %u x %u blocks of %u threads)",
                          (size_t)grid->function, grid->blocks[0], grid->blocks[1],
                          grid->threads[0]);
}
