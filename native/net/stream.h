/* A stream socket to a peer that is read and written whenever it can be, and never waited for. */
#ifndef PC_STREAM_H
#define PC_STREAM_H
#include <sys/types.h>
#include "core/internal.h"

/* Sends what it can of the first *nbytes at `bytes`, and moves the rest there. LOST: it has ended;
 * nothing is left then, as nobody reads it. */
int pc__stream_send(int fd, char *bytes, size_t *nbytes);
/* Receives at most `room` bytes: how many; 0: there are none now; LOST: it has ended. */
ssize_t pc__stream_receive(int fd, void *into, size_t room);
#endif
