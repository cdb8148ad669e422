/* The table of networks. The first one, which every host has, is the default. */
#include "core/net.h"

extern const struct pc_net_ops pc__tcp_ops, pc__verbs_ops, pc__libfabric_ops;

const struct pc_net_ops *const pc__nets[]
    = {&pc__tcp_ops, &pc__verbs_ops, &pc__libfabric_ops, NULL};
