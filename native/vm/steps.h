/* What a step's instruction has in `at`. C11 and CUDA C++: for who moves instructions as well as
 * for who runs them. A target's header comes first, if there is one. */
#ifndef PC_STEPS_H
#define PC_STEPS_H
#include "vm/vm.h"

#if defined(PC_DEVICE_FN)
#define PC_STEPS_FN PC_DEVICE_FN
#else
#define PC_STEPS_FN static inline
#endif

/* Whether an instruction itself names a FIFO, as at.fifo. */
PC_STEPS_FN bool pc__has_fifo(const struct pc_vm_instruction *i)
{
    switch ((enum pc_vm_step)i->step) {
    case PC_STEP_FILL:
    case PC_STEP_CONSUME:
    case PC_STEP_PUT_CREDIT:
    case PC_STEP_WAIT_CREDIT:
    case PC_STEP_WAIT_MESSAGE:
        return true;
    case PC_STEP_REDUCE_COPY:
    case PC_STEP_PUT_MESSAGE:
    case PC_STEP_SIGNAL_LOCAL:
    case PC_STEP_SIGNAL_DONE:
    case PC_STEP_WAIT_LOCAL:
    case PC_STEP_WAIT_DONE:
    case PC_STEP_LOOP:
    case PC_STEP_END_LOOP:
    case PC_STEP_END:
        break;
    }
    return false;
}
#endif
