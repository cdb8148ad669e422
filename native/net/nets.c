/* The networks there are. The first one is taken where none is asked for: every machine has it. */
#include "core/net.h"

extern const struct pc_net_ops pc__tcp_ops, pc__verbs_ops;

const struct pc_net_ops *const pc__nets[] = {&pc__tcp_ops, &pc__verbs_ops, NULL};
