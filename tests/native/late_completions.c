/* A connection that fails while completions of what came by it are still to be polled: none is lost
 * with its queue pair, as the sender has seen them acknowledged and will not send them again.
 *
 *   late_completions SHARED
 *
 * libibverbs is the stand-in of tests/fakeverbs. Two ranks of one thread are joined by two rails,
 * over which each message is striped; they share their receives, or not. Rank 1 does not poll until
 * all is acknowledged, and a connection of it has failed. */
#include <sched.h>
#include "verbs/verbs.h"
#include "rank_threads.h"

enum { MESSAGES = 3, BYTES = 64 << 10 };

static const uint64_t limit = UINT64_C(20000000000);

static void check(struct pc_comm *comm, const char *what, int rc)
{
    if (rc != PC_OK)
        die(comm, what, rc);
}

static void open_ranks(uint32_t srq_from)
{
    for (uint32_t r = 0; r < 2; r++) {
        struct pc_options options
            = {.rank = r, .size = 2, .slots = 4, .slot_bytes = BYTES, .heap_bytes = 1 << 20};
        struct pc_verbs_options verbs
            = {.queue_pairs = 1, .timeout = 14, .retry_count = 7, .srq_from = srq_from};
        struct pc_rail_spec specs[RAILS];
        for (uint32_t i = 0; i < RAILS; i++) {
            specs[i] = (struct pc_rail_spec){.port = 1, .gid_index = -1};
            snprintf(specs[i].device, sizeof specs[i].device, "fake%u", r * RAILS + i);
        }
        check(comms[r], "open", pc_comm_open(&options, &comms[r]));
        check(comms[r], "rails", pc_comm_rails(comms[r], &verbs, specs, RAILS));
        check(comms[r], "remote", pc_comm_remote(comms[r], !r));
    }
    size = 2;
    any_remote = by_rails = true;
    link_ranks(1);
}

static struct pc_verbs_net *net_of(uint32_t rank)
{
    return (struct pc_verbs_net *)comms[rank]->net;
}

static bool connected_now(void)
{
    return net_of(0)->base.state.live == RAILS && net_of(1)->base.state.live == RAILS;
}

static bool all_acknowledged(void)
{
    return net_of(0)->base.in_flight == 0;
}

static bool all_came(void)
{
    const struct pc_fifo *f = net_of(1)->base.peers[0]->edges[0].fifo;
    return pc__count(&f->in_lines[MESSAGES - 1]) == MESSAGES;
}

/* Lets the ranks from the first to the last see to their events until it holds. */
static void until(bool (*holds)(void), uint32_t last, const char *what)
{
    uint64_t deadline = pc__now() + limit;
    while (!holds()) {
        for (uint32_t r = 0; r <= last; r++)
            pc_comm_handle_events(comms[r]);
        if (pc__now() > deadline) {
            fprintf(stderr, "%s: not within 20 s\n", what);
            exit(1);
        }
        sched_yield();
    }
}

int main(int argc, char **argv)
{
    bool shared = argc == 2 && strcmp(argv[1], "shared") == 0;
    struct pc_error error;
    open_ranks(shared ? 0 : RAILS);
    until(connected_now, 1, "connections");
    struct pc_net_edge *edge = &net_of(0)->base.peers[1]->edges[0];
    for (int i = 0; i < MESSAGES; i++)
        if (pc__net_message(edge, edge->fifo->out_data + i * BYTES, NULL, BYTES, &error) != PC_OK) {
            fprintf(stderr, "message %d: %s\n", i, error.text);
            return 1;
        }
    until(all_acknowledged, 0, "acknowledgements");
    struct pc_verbs_net *w = net_of(1);
    pthread_mutex_lock(&w->base.lock);
    pc__connection_fail(w, &pc__verbs_peer(w, 0)->conns[0], "a fault");
    pc__net_unlock(&w->base);
    until(all_came, 1, "messages");
    until(connected_now, 1, "connections anew");
    printf("%u\n", (unsigned)net_of(1)->base.state.failures);
    for (uint32_t r = 0; r < 2; r++)
        pc_comm_close(comms[r]);
    return 0;
}
