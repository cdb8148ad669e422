/* The network of libfabric: one endpoint for all peers, packets, and peers, under the net's lock.
 *
 * What is sent goes in packets, each a header and at most PC_FABRIC_FRAGMENT bytes of one message.
 * A packet is sent from a buffer of its own, and received in one. Where the provider can, a longer
 * message is written into its slot instead, by one operation whose completion the receiver sees,
 * and its header beside it, or in a packet where a write goes to one place only. All of these may
 * arrive in any order, and so may completions. A very long transfer is read by its receiver from
 * where it lies. */
#ifndef PC_FABRIC_H
#define PC_FABRIC_H
#include "libfabric/wireup.h"
#include "net/frame.h"

#ifdef PC_LIBFABRIC

/* Small enough that providers send it without asking the receiver first, which has to run for the
 * answer (eager, not rendezvous): 16 KiB with all headers. */
#define PC_FABRIC_FRAGMENT (16384u - 192u)
/* Messages from so many bytes on are written where their header goes along: a packet is copied on
 * its way, by providers, too. */
#define PC_FABRIC_WRITE_FROM 2048u
/* The send window: packets that may be under way from one rank to another. Where there are many
 * ranks, or the provider's queues are short, it is fewer. */
#define PC_FABRIC_WINDOW 64u
#define PC_FABRIC_LEAST_WINDOW 2u
#define PC_FABRIC_PACKETS 4096u /* of all windows of a rank together, if they can be so small */
/* Receives beside the window, for what is not counted in it: one that greets, and those that only
 * tell what was received. Half a window of packets comes between two of these, so that at most two
 * are sent between two windows; the rest is for some that were overtaken. */
#define PC_FABRIC_SPARE 4u
#define PC_FABRIC_READS 4u   /* under way for one rendezvous */
#define PC_FABRIC_SENDS 256u /* messages and credits that wait, per peer */
_Static_assert(PC_FABRIC_SENDS >= PC_EDGE_CHANNELS * (PC_LINES + 1), "a queue holds all frames");

struct pc_fabric_head { /* the header of a packet; of one that only tells, as far as `frame` */
    uint64_t key;      /* from the receiver's HELLO: else the packet is a stranger's, and dropped */
    uint32_t rank;     /* of the sender */
    uint32_t written;  /* 1: the bytes of the message are written, and none are here; else 0 */
    uint64_t received; /* packets with a frame that have come from the receiver */
    uint64_t at;       /* which fragment of the message it is: where in it this begins */
    struct pc_frame frame;
};
#define PC_FABRIC_TELLS offsetof(struct pc_fabric_head, frame)
#define PC_FABRIC_PACKET (sizeof(struct pc_fabric_head) + PC_FABRIC_FRAGMENT)
_Static_assert(sizeof(struct pc_fabric_head) == 80, "pc_fabric_head has no gaps");
_Static_assert(PC_FABRIC_PACKET <= PC_FABRIC_MESSAGE, "a packet is one message");

struct pc_fabric_packet {
    struct fi_context2 context; /* first: the provider's, while it has the packet */
    struct pc_fabric_packet *next;
    struct pc_fabric_peer *peer; /* whose packets these are */
    uint64_t count;              /* of a message, or a fragment of one: the frame's */
    struct pc_net_edge *edge;    /* of a frame that is under way; NULL: only tells, or the peer has
                                    ended */
    bool credit;                 /* the frame is a credit */
    bool receives;               /* else it is sent, or stands for a write */
    void *desc;                  /* of the memory region, where the provider wants one */
    char *bytes;
};

struct pc_fabric_block { /* packets with their buffers */
    struct pc_fabric_packet *packets;
    char *bytes;
    size_t nbytes;
    struct fid_mr *mr;
    uint32_t n;
};

struct pc_fabric_send { /* a frame that waits to be sent, or whose rest does */
    struct pc_frame frame;
    const char *bytes; /* in the shadow, unchanged until the peer's credit */
    uint64_t gone;     /* bytes that were sent */
    bool written;      /* its bytes are being written; its header is to be sent */
};

struct pc_fabric_arrival { /* of the next message of a line, from its first fragment on */
    struct pc_frame frame;
    uint32_t fragments; /* that have come; 0: none */
    bool headed;        /* the header of a message that is written has come */
    bool written;       /* all its bytes have */
};

/* What a rendezvous tells the reader: where the sender's memory is, as the provider wants it. */
struct pc_fabric_rkey {
    uint64_t address, key;
};
_Static_assert(sizeof(struct pc_fabric_rkey) <= PC_INLINE_BYTES, "it fits a line");

struct pc_fabric_read {         /* one operation of a rendezvous */
    struct fi_context2 context; /* first: the provider's, while it reads */
    struct pc_rndv *rndv;
    uint64_t nbytes; /* 0: none */
};

struct pc_rndv {          /* one end of a rendezvous; the sender's does not read */
    struct pc_rndv *next; /* in the net's list */
    struct pc_fabric_peer *peer;
    struct fid_mr *mr; /* of the memory; NULL: the provider reads into any */
    char *into;
    uint64_t nbytes, asked, came;
    struct pc_fabric_rkey rkey;
    struct pc_fabric_read reads[PC_FABRIC_READS];
    bool lent; /* to the peer: this is the sender's */
};

/* A message that lies in memory of a GPU, whole, and waits for a flush. */
struct pc_fabric_arrived {
    struct pc_fabric_peer *peer;
    struct pc_frame frame;
};

struct pc_fabric_hmem {
    struct pc_fabric_arrived *arrived;
    uint32_t n, room;
    uint32_t covered; /* of these, how many had come when the flush by a read began */
    bool reading;
    struct pc_fabric_packet read; /* stands for that read; of no peer */
    fi_addr_t self;               /* this rank's own endpoint */
    struct fid_mr *memory, *into; /* what is read, and where that goes: */
    uint64_t *word;
    uint64_t attempt,
        failing; /* when to try again after a failure, and since when it fails; or 0 */
};

struct pc_fabric_peer {
    struct pc_net_peer base;
    struct pc_fabric_socket socket;
    bool greeted;   /* the peer's HELLO has come */
    bool up;        /* a packet has come from it, so that there is a way */
    bool probed;    /* this rank's first packet was posted */
    uint64_t since; /* when its socket came */
    fi_addr_t address;
    fi_addr_t reads_at; /* its endpoint for reads; FI_ADDR_UNSPEC: it has none */
    bool broke_off;     /* it has closed that one, and said so: a read that fails tells no more */
    bool cut_by_read;   /* by nothing else, see `cut` */
    uint64_t key, their_key; /* what packets must show, here and there */
    uint32_t window;         /* packets that may be under way to the peer */
    uint64_t sent, arrived;  /* packets with a frame: to the peer, and of these, what it has told */
    uint64_t received, told; /* from the peer, and of these, what it was told */
    uint32_t under_way;      /* packets that the provider has */
    bool tells;              /* it must be told what was received */
    bool leaves;             /* the peer has said how many packets it sent in all: */
    uint64_t leaves_at;
    uint64_t asked;    /* for `arrived`, at so many packets sent, plus one; 0: not yet */
    bool told_to_stop; /* it is about to close: nothing is sent to it any more */
    bool stopped;      /* it sends nothing more, and has said how many packets it sent in all: */
    uint64_t stopped_at;
    bool closed; /* it has closed its endpoint, and said what had come: */
    uint32_t landed[PC_EDGE_LINES];
    uint64_t cut; /* a send or a read has failed: until when to hear whether it had closed; or 0 */
    char why[160];
    char gave_up[PC_FABRIC_WHY + 32]; /* why the peer gives up this rank; or "" */
    uint64_t gone; /* its socket has ended: until when to wait for the rest; 0: it has not */
    struct pc_fabric_send *queue; /* a ring */
    uint32_t head, tail;
    bool slots_gpu;            /* the peer's slots are in memory of its GPU */
    bool writes;               /* messages are written to its slots, which it has there: */
    uint64_t slots, slots_key; /* as the provider wants their address */
    struct fid_mr *slots_mr;   /* its slots here */
    struct pc_fabric_head
        *heads; /* of messages that it writes, by line; NULL: they go in packets */
    struct fid_mr *heads_mr;
    bool joins; /* and this rank writes headers there: */
    uint64_t heads_at, heads_key;
    struct fid_mr *shadow_mr; /* and from where is written to those there; NULL: not registered */
    struct pc_fabric_block sends, receives;
    struct pc_fabric_packet *free; /* of `sends` */
    struct pc_fabric_arrival arrivals[PC_EDGE_LINES];
    uint32_t partial; /* of these, how many are not whole */
    uint64_t *come;   /* a bit per fragment of each arrival */
};

struct pc_fabric_net {
    struct pc_net base;
    struct pc_fabric_options options;
    struct pc_fabric_endpoint endpoint;
    struct pc_fabric_hmem hmem;
    struct pc_fabric_endpoint reads; /* another, which only reads and is read; ep NULL: none */
    struct pc_rndv *rndvs;
    bool reads_woken; /* something happened at it, though this rank may have no rendezvous */
    bool reads_stop;  /* no more are posted */
    uint32_t window;  /* of each peer: packets to and from it */
    uint32_t words;   /* 64-bit words of `come` for an arrival */
    uint32_t partial; /* messages of which something has come, and not all */
    bool again;       /* the provider could not take a packet: it is to be tried soon */
    struct pc_fabric_packet *unposted; /* receives that it could not take */
    uint64_t adopted;                  /* when the last socket came */
};

static inline struct pc_fabric_peer *pc__fabric_peer(const struct pc_fabric_net *w, uint32_t rank)
{
    return (struct pc_fabric_peer *)w->base.peers[rank];
}

/* Whether the frame's bytes go from or to memory of a GPU: no packet has them, they are written. */
static inline bool pc__fabric_of_gpu(const struct pc_fabric_peer *peer,
                                     const struct pc_frame *frame)
{
    return (peer->base.gpu_out != 0 || peer->slots_gpu) && frame->kind == PC_FRAME_MESSAGE
           && frame->channel < PC_MAX_CHANNELS && frame->nbytes > PC_INLINE_BYTES;
}

/* net.c: how many packets may be under way between two ranks, so that all peers of each together
 * never exceed its receives, nor the provider's queues: a slow peer takes no other peer's place. */
int pc__fabric_choose_window(struct pc_fabric_net *w, struct pc_error *error);
size_t pc__fabric_completions(const struct pc_fabric_net *w);

/* memory.c: packets and their memory. */
int pc__fabric_block_open(struct pc_fabric_net *w, struct pc_fabric_peer *peer, uint32_t n,
                          bool receives, struct pc_fabric_block *out, struct pc_error *error);
void pc__fabric_block_close(struct pc_fabric_net *w, struct pc_fabric_block *block);
/* Registers the peer's slots here, for it to write to, and its shadow; and a place for headers
 * where they go along. None where that is refused, for packets do without. */
void pc__fabric_regions_open(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
void pc__fabric_regions_close(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
void pc__fabric_heads_free(struct pc_fabric_peer *peer);
/* Closes the regions of the peer and of its packets, whose memory stays. */
void pc__fabric_unregister_peer(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
/* Registers memory for an endpoint; *out stays NULL where the provider reads and writes any memory
 * of its own process. */
int pc__fabric_register(struct pc_fabric_net *w, struct pc_fabric_endpoint *e, const void *at,
                        size_t nbytes, uint64_t access, struct fid_mr **out,
                        struct pc_error *error);
void pc__fabric_unregister(struct pc_fabric_net *w, struct fid_mr **mr);
/* The same of the net's memory of a GPU, whose context is current. */
int pc__fabric_register_hmem(struct pc_fabric_net *w, uint64_t at, size_t nbytes, uint64_t access,
                             struct fid_mr **out, struct pc_error *error);
/* Where the slots in a peer's record, or in its shadow, begin; and how many bytes they have. */
char *pc__fabric_slots(const struct pc_fabric_net *w, char *record, size_t *nbytes);

/* A message of the peer's has begun to come (1), or is whole (-1). */
static inline void pc__fabric_partial(struct pc_fabric_net *w, struct pc_fabric_peer *peer, int by)
{
    peer->partial += (uint32_t)by;
    w->partial += (uint32_t)by;
}

/* packet.c: packets are posted, and what came in one is checked and put where it belongs. */
/* Sends what waits for the peer, as far as its window allows. A negative errno of libfabric when
 * the provider refused it: -FI_EAGAIN: for now. */
int pc__fabric_post(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
/* Fills what all headers have, of what is sent next; and once it is posted, counts it. */
void pc__fabric_address(struct pc_fabric_net *w, struct pc_fabric_packet *packet);
void pc__fabric_posted(struct pc_fabric_net *w, struct pc_fabric_packet *packet, size_t nbytes);
/* Sends a packet that only tells. 0, -FI_EAGAIN, or an errno. */
int pc__fabric_tell(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
void pc__fabric_receive(struct pc_fabric_net *w, struct pc_fabric_packet *packet);
void pc__fabric_receive_unposted(struct pc_fabric_net *w);
/* Drops what the peer was to get; messages that it has not told of as landed are undeliverable. */
void pc__fabric_drop(struct pc_fabric_peer *peer);
/* A packet of ours has left, or never will. */
void pc__fabric_sent(struct pc_fabric_packet *packet);
/* Who sent these bytes: NULL: nobody that may. */
struct pc_fabric_peer *pc__fabric_sender(const struct pc_fabric_net *w, const char *bytes,
                                         size_t nbytes);
/* OK, or 1 when a thread sleeps on a count that was raised; INVALID: the peer lied. */
int pc__fabric_land(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *bytes,
                    size_t nbytes, struct pc_error *error);
/* What a header says of the packets that have arrived. OK; INVALID: the peer lied. */
int pc__fabric_told(struct pc_fabric_peer *peer, uint64_t received, struct pc_error *error);
/* A packet was taken in whole, and with it what was written for it. */
void pc__fabric_count(struct pc_fabric_peer *peer);

/* write.c: messages that are written into the peer's slots. */
/* Whether its header is written with it. */
bool pc__fabric_is_joined(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                          const struct pc_frame *frame);
/* Writes both; the first free packet holds the header. 0, or a negative errno of libfabric. */
int pc__fabric_write_joined(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                            const struct pc_fabric_send *out);
/* Whether the message is one; its header goes when pc__fabric_write has begun to write it. */
bool pc__fabric_is_written(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                           const struct pc_frame *frame);
/* Takes the first free packet to stand for the operation. 0, or a negative errno of libfabric. */
int pc__fabric_write(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                     const struct pc_fabric_send *out);
/* What the completion of a write at its target says. Whose it is; NULL: nobody's that may write. */
struct pc_fabric_peer *pc__fabric_writer(const struct pc_fabric_net *w, uint64_t data,
                                         uint32_t *line, bool *joined);
/* As pc__fabric_land. */
int pc__fabric_written(struct pc_fabric_net *w, struct pc_fabric_peer *peer, uint32_t line,
                       struct pc_error *error);
int pc__fabric_joined(struct pc_fabric_net *w, struct pc_fabric_peer *peer, uint32_t line,
                      struct pc_error *error);

/* hmem.c: pc_net_ops's register_gpu, and the flush of what came into memory of a GPU. */
int pc__fabric_register_gpu(struct pc_net *net, struct pc_error *error);
/* A message is whole. OK, or 1, or negative, as pc__fabric_land. */
int pc__fabric_whole(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                     const struct pc_frame *frame, struct pc_error *error);
/* Begins a flush where messages wait for one. True when some are to be seen now. */
bool pc__fabric_hmem_flush(struct pc_fabric_net *w);
/* The read that flushes has ended; `why`: it failed. */
void pc__fabric_hmem_flushed(struct pc_fabric_net *w, const char *why);
/* Closes its regions, and frees the rest where no device may touch it any more. */
void pc__fabric_hmem_unregister(struct pc_fabric_net *w);
void pc__fabric_hmem_free(struct pc_fabric_net *w);

/* rndv.c: pc_net_ops's expose, get, test and release. */
int pc__fabric_expose(struct pc_net_peer *peer, const void *at, uint64_t nbytes, void *rkey,
                      struct pc_rndv **out);
int pc__fabric_get(struct pc_net_peer *peer, void *into, uint64_t nbytes, const void *rkey,
                   struct pc_rndv **out, struct pc_error *error);
int pc__fabric_test(struct pc_net_peer *peer, struct pc_rndv *rndv, struct pc_error *error);
void pc__fabric_release(struct pc_net_peer *peer, struct pc_rndv *rndv, bool taken);
/* True when something was read, here or by a peer. */
bool pc__fabric_poll_reads(struct pc_fabric_net *w);
/* Closes the endpoint for reads, and with it all memory that peers might read. False: the provider
 * does not close it. */
bool pc__fabric_stop_reads(struct pc_fabric_net *w);

/* peer.c: pc_net_ops's adopt, send, flush, connections and settled. */
int pc__fabric_adopt(struct pc_net_peer *peer, int fd);
int pc__fabric_send(struct pc_net_peer *peer, const struct pc_send_op *op);
bool pc__fabric_flush(struct pc_net_peer *peer);
int pc__fabric_connections(const struct pc_net_peer *peer);
bool pc__fabric_settled(const struct pc_net_peer *peer);
/* OK; a code: the stream ended, or was none. */
int pc__fabric_peer_read(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
/* A packet came from it. */
void pc__fabric_peer_came(struct pc_fabric_net *w, struct pc_fabric_peer *peer);
/* Nothing more can be sent to it, or read of it, as `what` says; what it has sent is still
 * received, until its socket ends. It is lost once it has said what it had received, or not for
 * long: it may have closed, and be about to say that. */
void pc__fabric_peer_cut(struct pc_fabric_peer *peer, const char *what, const char *why);
/* Tells all peers. */
void pc__fabric_say(struct pc_fabric_net *w, enum pc_fabric_wireup_kind kind);
/* Ends the peer. */
void pc__fabric_peer_leave(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *why);
/* The same, because of what only this rank can know: the peer is told the reason. */
void pc__fabric_peer_give_up(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *why);
void pc__fabric_peer_close(struct pc_fabric_net *w, struct pc_fabric_peer *peer);

/* events.c: pc_net_ops's poll, arm, woken, handle_event and handle_due. */
#define PC_EVENT_CQ (UINT64_C(1) << 32) /* epoll data; smaller numbers are ranks */
#define PC_EVENT_READS (PC_EVENT_CQ + 1)
#define PC_SHORT_NS UINT64_C(1000000)   /* until something that nobody tells is looked at again */
#define PC_FULL_NS UINT64_C(100000000)  /* and until a full window is */
#define PC_LAST_NS UINT64_C(1000000000) /* for the last of a peer that has closed */
void pc__fabric_poll(struct pc_net *net, struct pc_net_peer *only);
uint64_t pc__fabric_arm(struct pc_net *net, uint64_t ns);
void pc__fabric_woken(struct pc_net *net, uint64_t what);
void pc__fabric_handle_event(struct pc_net *net, uint64_t what);
void pc__fabric_handle_due(struct pc_net *net, bool block);
/* What a peer's packet or write led to. */
void pc__fabric_came(struct pc_fabric_net *w, struct pc_fabric_peer *peer, int rc,
                     const struct pc_error *error);
/* Before the endpoint is closed: lets the provider end what it has begun. */
void pc__fabric_quiesce(struct pc_fabric_net *w);
/* The same for what peers send: has them stop, and takes in what comes. False: some do not answer.
 * Gives the lock up now and then. */
bool pc__fabric_stop_peers(struct pc_fabric_net *w);
#endif
#endif
