/* Chooses a provider, and opens an endpoint of it. */
#include "libfabric/endpoint.h"
#include <string.h>

#ifdef PC_LIBFABRIC
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Providers of RDMA hardware, the preferred first; then what works without any. Others are used
 * only where they are asked for by name: `shm` does not leave the host. */
static const char *const rdma[] = {"efa", "cxi", "opx", "psm3", "psm2", "verbs"};
static const char *const software[] = {"tcp", "net", "sockets", "udp"};
#define PC_COUNT(array) ((uint32_t)(sizeof(array) / sizeof *(array)))
#define PC_UNRANKED 1000u

/* FI_OPT_EFA_EMULATED_* of rdma/fi_ext.h, which libfabric's headers have from 1.18 on: bools.
 * The provider's own options count up from the negative of its number, 0xefa0000. */
#define PC_EFA_EMULATED_READ (-0xefa0000 + 1)
#define PC_EFA_EMULATED_WRITE (-0xefa0000 + 2)
/* Options of an endpoint that libfabric's headers have from 1.12 and 1.18 on: an int, and a bool.
 */
#define PC_OPT_HMEM_P2P 8
#define PC_OPT_CUDA_API_PERMITTED 10
#define PC_P2P_REQUIRED 1

/* A layered provider is named core;layer, such as tcp;ofi_rxm. */
static bool is_core(const char *provider, const char *core)
{
    size_t n = strlen(core);
    return strncmp(provider, core, n) == 0 && (provider[n] == 0 || provider[n] == ';');
}

static bool is_rdma(const struct fi_info *info)
{
    for (uint32_t i = 0; i < PC_COUNT(rdma); i++)
        if (is_core(info->fabric_attr->prov_name, rdma[i]))
            return true;
    return false;
}

/* The smaller, the better. */
static uint32_t rank_of(const struct fi_info *info)
{
    for (uint32_t i = 0; i < PC_COUNT(rdma); i++)
        if (is_core(info->fabric_attr->prov_name, rdma[i]))
            return i;
    for (uint32_t i = 0; i < PC_COUNT(software); i++)
        if (is_core(info->fabric_attr->prov_name, software[i]))
            return PC_COUNT(rdma) + i;
    return PC_UNRANKED;
}

/* Whether its writes tell the receiver. That others take completion data says nothing: opx and cxi
 * do, and have no fi_writedata, or one that tells only of regions made for it. Those of ofi_rxd are
 * packets that its own code puts together, as pycoll's does with less. */
static bool tells_of_writes(const struct fi_info *info)
{
    static const char *const known[] = {"tcp", "net", "shm", "efa", "verbs;ofi_rxm"};
    const char *provider = info->fabric_attr->prov_name;
    for (uint32_t i = 0; i < PC_COUNT(known); i++)
        if (is_core(provider, known[i]))
            return strstr(provider, ";ofi_rxd") == NULL;
    return false;
}

static bool has_ip_address(const struct fi_info *info)
{
    return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN
           || info->addr_format == FI_SOCKADDR_IN6;
}

static int no_provider(const struct pc_fabric_options *options, int code, struct pc_error *error)
{
    bool named = options->provider[0] != 0;
    errno = 0;
    return pc__fail(error, PC_SYSTEM, -1,
                    "libfabric (%.100s) has no endpoint for reliable datagrams%s%.63s%s%.63s: %s: "
                    "fi_info -t FI_EP_RDM lists what there is",
                    pc__fi.path, named ? " of provider " : "", options->provider,
                    options->node[0] ? " at " : "", options->node,
                    pc__fi.strerror(code < 0 ? -code : FI_ENODATA));
}

static int hints_of(const char *provider, struct pc_error *error, struct fi_info **out)
{
    struct fi_info *hints = pc__fi.dupinfo(NULL);
    if (hints == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for libfabric");
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->ep_attr->max_msg_size = PC_FABRIC_MESSAGE; /* "efa-direct", e.g., takes an MTU */
    hints->domain_attr->threading = FI_THREAD_DOMAIN; /* every call is under the net's lock */
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->mr_mode
        = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
    if (provider[0] != 0 && (hints->fabric_attr->prov_name = strdup(provider)) == NULL) {
        pc__fi.freeinfo(hints);
        return pc__fail(error, PC_NOMEM, -1, "no memory for libfabric");
    }
    *out = hints;
    return PC_OK;
}

/* Not every provider heeds the hint. */
static bool takes_packets(const struct fi_info *info)
{
    return info->ep_attr->max_msg_size >= PC_FABRIC_MESSAGE;
}

/* The best provider's, or NULL. */
static const struct fi_info *best_of(const struct fi_info *list, bool named)
{
    const struct fi_info *best = NULL;
    for (const struct fi_info *one = list; one != NULL; one = one->next)
        if ((named || rank_of(one) != PC_UNRANKED) && takes_packets(one)
            && (best == NULL || rank_of(one) < rank_of(best)))
            best = one;
    return best;
}

/* Of a provider's NICs the one of this number, modulo how many there are: ranks of a host share
 * them evenly. Its infos for one domain stand for its protocols, the preferred first. */
static const struct fi_info *nic_of(const struct fi_info *best, uint32_t number)
{
    const struct fi_info *nics[64];
    uint32_t n = 0;
    for (const struct fi_info *one = best; one != NULL && n < PC_COUNT(nics); one = one->next) {
        bool known = strcmp(one->fabric_attr->prov_name, best->fabric_attr->prov_name) != 0
                     || !takes_packets(one);
        for (uint32_t i = 0; i < n && !known; i++)
            known = strcmp(one->domain_attr->name, nics[i]->domain_attr->name) == 0;
        if (!known)
            nics[n++] = one;
    }
    return nics[number % n];
}

/* Of a host's networks, the provider's on the one by which the ranks have met; NULL: it has none
 * there. */
static struct fi_info *at_node(const struct fi_info *best, const char *node, struct fi_info *hints)
{
    struct fi_info *list = NULL, *found = NULL;
    free(hints->fabric_attr->prov_name);
    hints->fabric_attr->prov_name = strdup(best->fabric_attr->prov_name);
    if (pc__fi.getinfo(PC_LIBFABRIC_API, node, NULL, FI_SOURCE, hints, &list) == 0) {
        found = pc__fi.dupinfo(list);
        pc__fi.freeinfo(list);
    }
    return found;
}

static int find(const struct pc_fabric_options *options, struct pc_error *error,
                struct fi_info **out)
{
    struct fi_info *hints = NULL, *list = NULL;
    int rc = hints_of(options->provider, error, &hints);
    if (rc != PC_OK)
        return rc;
    int code = pc__fi.getinfo(PC_LIBFABRIC_API, NULL, NULL, 0, hints, &list);
    const struct fi_info *best = code == 0 ? best_of(list, options->provider[0] != 0) : NULL;
    bool placed = best != NULL && has_ip_address(best) && options->node[0] != 0;
    *out = placed ? at_node(best, options->node, hints) : NULL;
    /* Ports for RDMA are often on a network of their own, which all ranks' share. */
    if (best != NULL && *out == NULL && (!placed || is_rdma(best)))
        *out = pc__fi.dupinfo(nic_of(best, options->nic));
    if (list != NULL)
        pc__fi.freeinfo(list);
    pc__fi.freeinfo(hints);
    return *out != NULL ? PC_OK : no_provider(options, code, error);
}

/* Whether the provider itself says that it only makes writes, or reads, of messages. */
static bool emulates(const struct pc_fabric_endpoint *e, int option)
{
    bool emulated = true;
    size_t nbytes = sizeof emulated;
    return is_core(e->info->fabric_attr->prov_name, "efa")
           && (fi_getopt(&e->ep->fid, FI_OPT_ENDPOINT, option, &emulated, &nbytes) != 0
               || emulated);
}

/* With an older interface EFA makes writes of messages on p4d and p5, though their cards write. */
static uint32_t api_of(const struct fi_info *chosen, uint64_t caps)
{
    bool newer = caps & FI_HMEM || is_core(chosen->fabric_attr->prov_name, "efa");
    return newer && FI_VERSION_GE(pc__fi.version(), PC_LIBFABRIC_API_WRITES)
               ? PC_LIBFABRIC_API_WRITES
               : PC_LIBFABRIC_API;
}

/* The same endpoint, if it can write to a peer's memory, and tell the peer when that is done; or
 * NULL. `caps`: what else it must be able to, FI_HMEM. */
static struct fi_info *writing(const struct fi_info *chosen, uint64_t caps)
{
    struct pc_error error;
    struct fi_info *hints, *list = NULL, *found = NULL;
    if (!tells_of_writes(chosen)
        || hints_of(chosen->fabric_attr->prov_name, &error, &hints) != PC_OK)
        return NULL;
    hints->caps |= FI_RMA | caps;
    if (caps & FI_HMEM)
        hints->domain_attr->mr_mode |= FI_MR_HMEM;
    hints->addr_format = chosen->addr_format;
    hints->domain_attr->name = strdup(chosen->domain_attr->name);
    hints->fabric_attr->name = strdup(chosen->fabric_attr->name); /* efa's others take an MTU */
    if (chosen->src_addr != NULL && (hints->src_addr = malloc(chosen->src_addrlen)) != NULL) {
        memcpy(hints->src_addr, chosen->src_addr, chosen->src_addrlen);
        hints->src_addrlen = chosen->src_addrlen;
    }
    pc__fi.getinfo(api_of(chosen, caps), NULL, NULL, 0, hints, &list);
    for (const struct fi_info *one = list; one != NULL && found == NULL; one = one->next)
        if (takes_packets(one) && one->domain_attr->cq_data_size >= sizeof(uint32_t)
            && (one->caps & caps) == caps)
            found = pc__fi.dupinfo(one);
    if (list != NULL)
        pc__fi.freeinfo(list);
    pc__fi.freeinfo(hints);
    return found;
}

int pc__endpoint_refused(const struct pc_fabric_endpoint *endpoint, const char *call, int code,
                         struct pc_error *error)
{
    pc__fail(error, code == -FI_ENOMEM ? PC_NOMEM : PC_SYSTEM, -1, "%s of provider %s: %s", call,
             endpoint->info->fabric_attr->prov_name, pc__fi.strerror(-code));
    error->errnum = -code;
    return error->code;
}

static int open_cq(struct pc_fabric_endpoint *e, size_t completions, enum fi_wait_obj wait,
                   struct fid_cq **out)
{
    struct fi_cq_attr attr = {.size = completions, .format = FI_CQ_FORMAT_DATA, .wait_obj = wait};
    return fi_cq_open(e->domain, &attr, out, NULL);
}

/* With a descriptor to sleep on, or without where there is none. */
static int open_sleeping_cq(struct pc_fabric_endpoint *e, size_t completions)
{
    int rc = open_cq(e, completions, FI_WAIT_FD, &e->cq);
    if (rc == 0 && fi_control(&e->cq->fid, FI_GETWAIT, &e->wait_fd) == 0)
        return 0;
    e->wait_fd = -1;
    if (rc == 0)
        fi_close(&e->cq->fid);
    e->cq = NULL;
    return open_cq(e, completions, FI_WAIT_NONE, &e->cq);
}

int pc__endpoint_find(const struct pc_fabric_options *options, struct pc_error *error,
                      struct pc_fabric_endpoint *out)
{
    int rc = find(options, error, &out->info);
    struct fi_info *writes = rc == PC_OK ? writing(out->info, 0) : NULL;
    if (writes != NULL) {
        pc__fi.freeinfo(out->info);
        out->info = writes;
        out->writes = true;
    }
    return rc;
}

int pc__endpoint_find_hmem(const struct pc_fabric_endpoint *e, struct pc_error *error,
                           struct pc_fabric_endpoint *out)
{
    const char *provider = e->info->fabric_attr->prov_name;
    uint32_t version = pc__fi.version();
    *out = (struct pc_fabric_endpoint){.wait_fd = -1};
    errno = 0;
    if (FI_VERSION_LT(version, PC_LIBFABRIC_API_WRITES))
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "libfabric %u.%u may call CUDA while a kernel waits for it; want 1.18 or "
                        "later",
                        FI_MAJOR(version), FI_MINOR(version));
    if (!e->writes)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "provider %s does not write to a peer's memory by itself, and tell the "
                        "peer (FI_RMA with FI_REMOTE_CQ_DATA)",
                        provider);
    out->info = writing(e->info, FI_HMEM);
    if (out->info == NULL)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "provider %s has no endpoint for memory of a GPU: fi_info -p '%s' -t "
                        "FI_EP_RDM -c 'FI_RMA|FI_HMEM' lists none",
                        provider, provider);
    out->writes = out->hmem = true;
    return PC_OK;
}

/* Has the provider reach memory of a GPU by its NIC alone. It would copy some of it by CUDA
 * otherwise, and such a call waits for kernels, which wait for messages. */
static int forbid_copies(struct pc_fabric_endpoint *e, const char **call)
{
    int required = PC_P2P_REQUIRED;
    bool permitted = false;
    *call = "fi_setopt of FI_OPT_CUDA_API_PERMITTED, to false,";
    int code = fi_setopt(&e->ep->fid, FI_OPT_ENDPOINT, PC_OPT_CUDA_API_PERMITTED, &permitted,
                         sizeof permitted);
    if (code != 0)
        return code;
    *call = "fi_setopt of FI_OPT_FI_HMEM_P2P, to FI_HMEM_P2P_REQUIRED,";
    return fi_setopt(&e->ep->fid, FI_OPT_ENDPOINT, PC_OPT_HMEM_P2P, &required, sizeof required);
}

int pc__endpoint_open(struct pc_fabric_endpoint *e, size_t completions, bool one_queue,
                      struct pc_error *error)
{
    size_t bytes = sizeof e->address;
    enum fi_av_type kind = e->info->domain_attr->av_type;
    struct fi_av_attr av = {.type = kind == FI_AV_UNSPEC ? FI_AV_MAP : kind};
    const char *call = "fi_fabric";
    int code = pc__fi.fabric(e->info->fabric_attr, &e->fabric, NULL);
    if (code == 0)
        code = (call = "fi_domain", fi_domain(e->fabric, e->info, &e->domain, NULL));
    if (code == 0)
        code = (call = "fi_av_open", fi_av_open(e->domain, &av, &e->av, NULL));
    if (code == 0)
        code = (call = "fi_cq_open", open_sleeping_cq(e, completions));
    e->tx_cq = e->cq;
    if (code == 0 && !one_queue)
        code = (call = "fi_cq_open", open_cq(e, completions, FI_WAIT_NONE, &e->tx_cq));
    if (code == 0)
        code = (call = "fi_endpoint", fi_endpoint(e->domain, e->info, &e->ep, NULL));
    if (code == 0 && e->hmem)
        code = forbid_copies(e, &call);
    if (code == 0)
        code = (call = "fi_ep_bind of fi_av", fi_ep_bind(e->ep, &e->av->fid, 0));
    uint64_t both = one_queue ? FI_TRANSMIT : 0;
    if (code == 0)
        code = (call = "fi_ep_bind of fi_cq", fi_ep_bind(e->ep, &e->cq->fid, FI_RECV | both));
    if (code == 0 && !one_queue)
        code = (call = "fi_ep_bind of fi_cq", fi_ep_bind(e->ep, &e->tx_cq->fid, FI_TRANSMIT));
    if (code == 0)
        code = (call = "fi_enable", fi_enable(e->ep));
    if (code == 0)
        code = (call = "fi_getname", fi_getname(&e->ep->fid, e->address, &bytes));
    e->address_bytes = (uint32_t)bytes;
    e->writes = e->writes && code == 0 && !emulates(e, PC_EFA_EMULATED_WRITE);
    e->joins
        = e->writes && e->info->tx_attr->iov_limit >= 2 && e->info->tx_attr->rma_iov_limit >= 2;
    e->reads = e->writes && !emulates(e, PC_EFA_EMULATED_READ);
    return code == 0 ? PC_OK : pc__endpoint_refused(e, call, code, error);
}

int pc__endpoint_open_beside(const struct pc_fabric_endpoint *e, size_t completions,
                             struct pc_error *error, struct pc_fabric_endpoint *out)
{
    *out = (struct pc_fabric_endpoint){
        .info = pc__fi.dupinfo(e->info), .writes = e->writes, .wait_fd = -1};
    if (out->info == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for libfabric");
    int rc = pc__endpoint_open(out, completions, true, error);
    if (rc != PC_OK)
        pc__endpoint_close(out);
    return rc;
}

/* Until 1.18 `tcp` keeps a read whose bytes are coming in two places, and frees it from both as its
 * endpoint closes; and reports a write whose bytes are coming without a context, which ofi_rxm
 * follows. Its data move only while it is polled: ofi_rxm has a thread for them only where
 * automatic progress is asked for. */
bool pc__endpoint_closes_only_idle(const struct pc_fabric_endpoint *e)
{
    return is_core(e->info->fabric_attr->prov_name, "tcp")
           && FI_VERSION_LT(pc__fi.version(), FI_VERSION(1, 18));
}

bool pc__endpoint_may_sleep(const struct pc_fabric_endpoint *e)
{
    struct fid *cq = e->cq != NULL ? &e->cq->fid : NULL;
    return e->ep == NULL || e->wait_fd < 0 || cq == NULL || fi_trywait(e->fabric, &cq, 1) == 0;
}

/* True when it is closed. There is no call left whose error this could be. */
static bool close_fid(const struct pc_fabric_endpoint *e, const char *what, struct fid *fid)
{
    int code = fid != NULL ? fi_close(fid) : 0;
    if (code != 0)
        fprintf(stderr, "pycoll: provider %s does not close its %s, and keeps its memory: %s\n",
                e->info->fabric_attr->prov_name, what, pc__fi.strerror(-code));
    return code == 0;
}

bool pc__endpoint_stop(struct pc_fabric_endpoint *e)
{
    if (!close_fid(e, "endpoint", e->ep ? &e->ep->fid : NULL))
        e->kept = true;
    e->ep = NULL;
    return !e->kept;
}

void pc__endpoint_close(struct pc_fabric_endpoint *e)
{
    bool other = e->tx_cq != NULL && e->tx_cq != e->cq;
    bool closed = pc__endpoint_stop(e) && close_fid(e, "queue", e->cq ? &e->cq->fid : NULL)
                  && close_fid(e, "queue of sends", other ? &e->tx_cq->fid : NULL)
                  && close_fid(e, "address vector", e->av ? &e->av->fid : NULL)
                  && close_fid(e, "domain", e->domain ? &e->domain->fid : NULL)
                  && close_fid(e, "fabric", e->fabric ? &e->fabric->fid : NULL);
    if (closed && e->info != NULL)
        pc__fi.freeinfo(e->info);
    memset(e, 0, sizeof *e);
    e->wait_fd = -1;
}

int pc_fabric_find(const struct pc_fabric_options *options, struct pc_fabric_provider *out,
                   struct pc_error *error)
{
    struct fi_info *info;
    memset(out, 0, sizeof *out);
    if (*pc__fi_load() != 0)
        return pc__fail(error, PC_SYSTEM, -1, "%s", pc__fi_load());
    snprintf(out->library, sizeof out->library, "%s", pc__fi.path);
    out->library_version = pc__fi.version();
    int rc = find(options, error, &info);
    if (rc != PC_OK)
        return rc;
    snprintf(out->name, sizeof out->name, "%s", info->fabric_attr->prov_name);
    snprintf(out->domain, sizeof out->domain, "%s", info->domain_attr->name);
    out->version = info->fabric_attr->prov_version;
    out->rdma = is_rdma(info);
    if (info->nic != NULL && info->nic->link_attr != NULL)
        out->speed = info->nic->link_attr->speed;
    pc__fi.freeinfo(info);
    return PC_OK;
}
#else
int pc_fabric_find(const struct pc_fabric_options *options, struct pc_fabric_provider *out,
                   struct pc_error *error)
{
    (void)options;
    memset(out, 0, sizeof *out);
    return pc__fail(error, PC_SYSTEM, -1, "%s", pc__fi_load());
}
#endif

const char *pc_fabric_missing(void)
{
    return pc__fi_load();
}
