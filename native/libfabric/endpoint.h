/* A provider's endpoint for reliable datagrams (FI_EP_RDM), its address vector and its completion
 * queues: what all peers of a communicator share. */
#ifndef PC_FABRIC_ENDPOINT_H
#define PC_FABRIC_ENDPOINT_H
#include "libfabric/libfabric.h"
#include "core/internal.h"

/* Bytes that are sent at once, at most. With a provider's header it is an eager message. */
#define PC_FABRIC_MESSAGE (16384u - 64u)
#ifdef PC_LIBFABRIC

#define PC_FABRIC_ADDRESS 256u /* bytes of an address at most */

struct pc_fabric_endpoint {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq; /* of what comes; it may have a descriptor to sleep on */
    /* Of what is sent: it has none, as the provider would write to it each time. Or the same. */
    struct fid_cq *tx_cq;
    struct fid_ep *ep;
    bool writes; /* it writes to a peer's memory by itself, and tells the peer when that is
                    done */
    bool joins;  /* to two places by one write */
    bool reads;  /* and reads from there by itself */
    bool hmem;   /* memory may be a GPU's (FI_HMEM), which it reaches without CUDA's help */
    bool kept;   /* its ep could not be closed, or must not be */
    int wait_fd; /* readable when completions may have come; -1: the provider has none */
    char address[PC_FABRIC_ADDRESS];
    uint32_t address_bytes;
};

/* Chooses the provider and the NIC: fills `info`. */
int pc__endpoint_find(const struct pc_fabric_options *options, struct pc_error *error,
                      struct pc_fabric_endpoint *out);
/* Opens what was chosen. `completions`: how many the completion queue must hold; `one_queue`: it
 * also has those of what is sent, so that a rank sleeps until one comes. */
int pc__endpoint_open(struct pc_fabric_endpoint *endpoint, size_t completions, bool one_queue,
                      struct pc_error *error);
/* Opens another of the same provider. */
int pc__endpoint_open_beside(const struct pc_fabric_endpoint *endpoint, size_t completions,
                             struct pc_error *error, struct pc_fabric_endpoint *out);
/* Finds the same endpoint for memory of a GPU: the caller opens it. UNMAPPABLE: what is missing. */
int pc__endpoint_find_hmem(const struct pc_fabric_endpoint *endpoint, struct pc_error *error,
                           struct pc_fabric_endpoint *out);
/* Whether it must not be closed while it reads, or a peer's write comes in. Nothing moves unless it
 * is polled. */
bool pc__endpoint_closes_only_idle(const struct pc_fabric_endpoint *endpoint);
/* Whether a rank may sleep on its descriptor now; true also where it has none. */
bool pc__endpoint_may_sleep(const struct pc_fabric_endpoint *endpoint);
/* The provider lets go of all packets; their memory may be freed before `close`. False: it does
 * not, and that memory must stay, as must the other objects. */
bool pc__endpoint_stop(struct pc_fabric_endpoint *endpoint);
void pc__endpoint_close(struct pc_fabric_endpoint *endpoint);
/* `code` is what `call` returned: a negative errno of libfabric. */
int pc__endpoint_refused(const struct pc_fabric_endpoint *endpoint, const char *call, int code,
                         struct pc_error *error);
#endif
#endif
