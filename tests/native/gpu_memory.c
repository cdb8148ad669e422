/* A network's memory of a GPU: when it may be given, when it is freed, and a peer that lies of it.
 *
 *   gpu_memory SCENARIO
 *
 * Both stand-ins play the machine, with two ranks of one thread. SCENARIO:
 *   twice   memory is given a second time
 *   late    it is given when a peer is connected
 *   freed   the net closes: it frees the memory once, when no NIC reaches it any more
 *   kept    the same, while a kernel may still write it
 *   placed  a peer writes a header behind the data, which no CPU can read there
 *   again   the first memory cannot be registered, as FAKEVERBS_FAIL has it; other memory then can
 */
#include <sched.h>
#include "gpu/driver/cuda.h"
#include "verbs/verbs.h"
#include "rank_threads.h"

enum { BYTES = 64 << 10 };

static const uint64_t limit = UINT64_C(20000000000);
static struct pc_net_gpu memory[2];
static uint32_t regions_then[2]; /* when memory was freed: plus one; 0: it was not */

static void check(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

static struct pc_verbs_net *net_of(uint32_t rank)
{
    return (struct pc_verbs_net *)comms[rank]->net;
}

static struct pc_verbs_peer *peer_of(uint32_t rank)
{
    return pc__verbs_peer(net_of(rank), !rank);
}

static void freed(int32_t device, uint64_t at)
{
    struct pc_error error;
    for (uint32_t r = 0; r < 2; r++)
        if (at == memory[r].at) {
            check(regions_then[r] == 0, "it is freed once");
            regions_then[r] = net_of(r)->base.state.regions + 1;
        }
    check(pc_cuda_free(device, at, &error) == PC_OK, "the driver frees it");
}

static int give(uint32_t rank, struct pc_error *error)
{
    struct pc_net_gpu gpu = {
        .each = PC_MAX_CHANNELS * comms[rank]->layout.channel, .ways = PC_MEM_WAYS, .free = freed};
    check(pc_cuda_alloc(0, 2 << 20, error, &gpu.at) == PC_OK, "memory of the GPU");
    int rc = pc__net_gpu(&net_of(rank)->base, &gpu, error);
    if (rc == PC_OK)
        memory[rank] = gpu;
    else
        check(pc_cuda_free(0, gpu.at, &(struct pc_error){0}) == PC_OK, "what was not taken");
    return rc;
}

static void open_ranks(bool with_memory)
{
    for (uint32_t r = 0; r < 2; r++) {
        struct pc_options options = {.rank = r, .size = 2, .slots = 2, .slot_bytes = BYTES};
        int rc = pc_comm_open(&options, &comms[r]);
        if (rc == PC_OK)
            rc = open_rails(comms[r], r);
        if (rc == PC_OK)
            rc = pc_comm_remote(comms[r], !r);
        if (rc != PC_OK)
            die(comms[r], "open", rc);
        if (with_memory && give(r, &comms[r]->error) != PC_OK)
            die(comms[r], "its memory", PC_UNMAPPABLE);
    }
}

static bool connected_now(void)
{
    return net_of(0)->base.state.live == RAILS && net_of(1)->base.state.live == RAILS;
}

static bool lost(void)
{
    return peer_of(1)->base.ended;
}

static void until(bool (*holds)(void), const char *what)
{
    uint64_t deadline = pc__now() + limit;
    while (!holds()) {
        for (uint32_t r = 0; r < 2; r++)
            pc_comm_handle_events(comms[r]);
        check(pc__now() < deadline, what);
        sched_yield();
    }
}

/* What is given now is refused, and changes nothing. */
static void refuse(const char *want)
{
    struct pc_error error = {0};
    uint64_t in = peer_of(0)->base.gpu_in;
    check(give(0, &error) == PC_INVALID && strcmp(error.text, want) == 0, want);
    check(net_of(0)->base.gpu.at == memory[0].at, "what was given first stays");
    check(peer_of(0)->base.gpu_in == in, "and where the peer writes");
}

static void play_placed(void)
{
    struct pc_error error;
    struct pc_net_edge *edge = &net_of(0)->base.peers[1]->edges[0];
    /* Rank 0 takes both ends for memory of the host. */
    peer_of(0)->hello.slots_gpu = 0;
    peer_of(0)->base.gpu_out = 0;
    check(pc__net_message(edge, edge->fifo->out_data, NULL, 64, &error) == PC_OK, "a message");
    until(lost, "the liar is lost");
    check(strstr(peer_of(1)->base.fault.text, "a header in memory of a GPU") != NULL,
          peer_of(1)->base.fault.text);
}

/* Memory that could not be registered is freed in `give`, which the driver's stand-in refuses where
 * a region of it is left. */
static void give_again(void)
{
    struct pc_error error = {0};
    const struct pc_net *net = &net_of(0)->base;
    check(give(0, &error) == PC_UNMAPPABLE, "the first is refused");
    check(strstr(error.text, "Cannot allocate memory") != NULL, error.text);
    check(net->gpu.at == 0 && peer_of(0)->base.gpu_in == 0 && peer_of(0)->base.gpu_out == 0,
          "nothing of it is kept");
    check(peer_of(0)->base.staged.code == 0, "where all is staged, nobody is by himself");
    check(net->state.regions == 0 && net->state.queue_pairs == 0 && net->state.gpu_memory == 0,
          "nothing is left of it");
    for (uint32_t r = 0; r < 2; r++)
        if (give(r, &error) != PC_OK)
            die(comms[r], "its memory", PC_UNMAPPABLE);
}

static void play(const char *scenario)
{
    bool late = strcmp(scenario, "late") == 0, again = strcmp(scenario, "again") == 0;
    open_ranks(!late && !again);
    if (again)
        give_again();
    if (strcmp(scenario, "twice") == 0)
        refuse("verbs has memory of a GPU already");
    link_ranks(1);
    until(connected_now, "connections");
    if (late)
        refuse("memory of a GPU comes before rank 1 is connected");
    if (strcmp(scenario, "placed") == 0)
        play_placed();
    if (strcmp(scenario, "kept") == 0)
        net_of(0)->base.gpu.keep = true;
}

int main(int argc, char **argv)
{
    const char *scenario = argc == 2 ? argv[1] : "";
    bool late = strcmp(scenario, "late") == 0, kept = strcmp(scenario, "kept") == 0;
    size = 2;
    any_remote = by_rails = true;
    play(scenario);
    for (uint32_t r = 0; r < 2; r++)
        pc_comm_close(comms[r]);
    check(regions_then[0] == (late || kept ? 0 : 1), "freed at last, without a region");
    check(regions_then[1] == (late ? 0 : 1), "freed at last, without a region");
    printf("%s\n", scenario);
    return 0;
}
