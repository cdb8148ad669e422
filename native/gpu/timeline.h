/* When calls ran on the GPU, where somebody wants to know. */
#ifndef PC_TIMELINE_H
#define PC_TIMELINE_H
#include "gpu/device_comm.h"

/* Around a launch of call `sequence` on a stream; only where there is dc->timeline. */
int pc__timeline_begins(struct pc_device_comm *dc, uint64_t sequence, uintptr_t stream);
int pc__timeline_ends(struct pc_device_comm *dc, uint64_t sequence, uintptr_t stream);
void pc__timeline_close(struct pc_device_comm *dc);
#endif
