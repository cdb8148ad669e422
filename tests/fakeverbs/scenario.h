/* What the driver's scenarios share: two endpoints, of which `a` sends to `b`. */
#ifndef FV_SCENARIO_H
#define FV_SCENARIO_H
#include "endpoint.h"

#define RW (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define SIGNALED IBV_SEND_SIGNALED
#define INLINE IBV_SEND_INLINE

struct scenario {
    const char *name;
    void (*run)(void);
};
extern const struct scenario request_scenarios[], ending_scenarios[], sharing_scenarios[],
    strict_scenarios[], gpu_scenarios[]; /* end with no name */

extern const char *device_a, *device_b;
extern int gid_index;
extern struct endpoint a, b;
extern const struct timing calm;
extern struct timing hasty; /* gives up soon */

void open_both(int access_b, struct timing timing);
void close_both(void);
/* A second QP of `a` and `b`, on the same queues; the first ones are given back in `out`. */
void another_pair(struct ibv_qp *out[2]);

/* Waits for `n` completions and writes them as a line. Of those that came, receives (which have
 * numbers from 100) are last: their order among sends is nobody's promise. */
void show(const char *what, struct endpoint *e, int n);
void nothing_more(const char *what, struct endpoint *e);
void show_states(void);
bool readable(int fd, int ms);
/* Runs the command in an environment variable. */
void run(const char *variable);
#endif
