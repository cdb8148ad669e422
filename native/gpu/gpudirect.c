/* GPUDirect RDMA: the memory of the GPU that the data of remote edges goes to and comes from. The
 * network registers it, and owns it then: it lives until no NIC can reach it, longer than the
 * device communicator. */
#include "gpu/device_comm.h"
#include "gpu/driver/cuda.h"
#include "core/net.h"

#define PC_UNIT ((size_t)2 << 20) /* an allocation of its own, whose pages the driver exports */
#define PC_SHARE 16u              /* at most this part of the GPU's memory */

static void free_memory(int32_t device, uint64_t at)
{
    struct pc_error ignored;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    pc_cuda_free(device, at, &ignored);
    pc__cuda_relax(mode);
}

static int open_memory(struct pc_device_comm *dc, uint32_t ways)
{
    struct pc_net *net = dc->comm->net;
    struct pc_net_gpu gpu = {.each = PC_MAX_CHANNELS * dc->comm->layout.channel,
                             .device = dc->device,
                             .ways = ways,
                             .free = free_memory};
    size_t nbytes = 2 * net->npeers * gpu.each;
    struct pc_cuda_device device;
    if (net->ops->register_gpu == NULL) /* before any memory is taken */
        return pc__fail(dc->error, PC_UNMAPPABLE, -1, "%s sends from memory of the host",
                        net->ops->name);
    int rc = pc_cuda_device(dc->device, dc->error, &device);
    if (rc != PC_OK)
        return rc;
    if (nbytes > device.nbytes / PC_SHARE)
        return pc__fail(dc->error, PC_UNMAPPABLE, -1,
                        "the messages of %u ranks take %zu MiB, more than a %uth of the memory of "
                        "GPU %d",
                        net->npeers, nbytes >> 20, PC_SHARE, dc->device);
    nbytes = (nbytes + PC_UNIT - 1) / PC_UNIT * PC_UNIT;
    rc = pc_cuda_alloc(dc->device, nbytes, dc->error, &gpu.at);
    if (rc != PC_OK)
        return rc;
    rc = gpu.at % PC_PAGE == 0
             ? pc__net_gpu(net, &gpu, dc->error)
             : pc__fail(dc->error, PC_UNMAPPABLE, -1, "GPU memory at %#zx, which is no whole page",
                        (size_t)gpu.at);
    if (rc != PC_OK)
        free_memory(dc->device, gpu.at);
    return rc;
}

int pc_device_comm_gpudirect(struct pc_device_comm *dc, uint32_t ways)
{
    struct pc_net *net = dc->comm->net;
    if (dc->sealed || (ways & ~PC_MEM_WAYS) != 0)
        return pc__fail(dc->error, PC_INVALID, -1,
                        "GPUDirect RDMA by %#x of a device communicator that is%s sealed", ways,
                        dc->sealed ? "" : " not");
    if (net == NULL || net->npeers == 0)
        return PC_OK;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = open_memory(dc, ways);
    pc__cuda_relax(mode);
    return rc;
}

int pc_device_comm_staged(struct pc_device_comm *dc, uint32_t rank)
{
    const struct pc_net *net = dc->comm->net;
    const struct pc_net_peer *peer
        = net != NULL && rank < dc->comm->options.size ? net->peers[rank] : NULL;
    if (peer == NULL || peer->staged.code == 0)
        return PC_OK;
    *dc->error = peer->staged;
    return dc->error->code;
}

void pc__gpudirect_keep(struct pc_device_comm *dc)
{
    if (dc->comm->net != NULL)
        dc->comm->net->gpu.keep = true;
}

uint64_t pc__gpudirect_data(const struct pc_device_comm *dc, uint32_t peer, uint32_t channel,
                            bool in)
{
    if (dc->peers[peer].route != PC_ROUTE_NET)
        return 0;
    const struct pc_net_peer *p = dc->comm->net->peers[peer];
    uint64_t at = in ? p->gpu_in : p->gpu_out;
    return at == 0 ? 0 : at + channel * dc->comm->layout.channel;
}
