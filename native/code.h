/* The codes that functions of the engine return. Part of the ABI. */
#ifndef PC_CODE_H
#define PC_CODE_H

enum pc_code {
    PC_OK = 0,
    PC_AGAIN = -1,      /* not finished yet; call again */
    PC_INVALID = -2,    /* an argument, program or peer's blob is wrong */
    PC_NOMEM = -3,      /* out of memory or address space */
    PC_SYSTEM = -4,     /* the operating system refused; see error.errnum */
    PC_UNMAPPABLE = -5, /* the peer's memory cannot be mapped from here */
    PC_TIMEDOUT = -6,   /* the call's deadline passed */
    PC_MISMATCH = -7,   /* error.peer sent the bytes of another call */
    PC_ABORTED = -8,    /* pc_comm_abort was called: error.cause says with which code */
    PC_BUSY = -9,       /* another thread is inside a call on this communicator */
    PC_BROKEN = -10,    /* an earlier call failed */
    PC_LOST = -11,      /* error.peer, whom the call needs, is gone, or the network to it */
};
#endif
