/* Where the threads of a block meet: after data has moved, before the next line that says so to
 * others, by whatever way a kernel comes there. */
#include <stdio.h>
#include "gpu/device_image.h"

#define COPY PC_STEP_REDUCE_COPY

struct trial {
    const char *name;
    uint8_t steps[8];
    uint32_t meet; /* bit i: before line i */
};

static const struct trial trials[] = {
    {"in a row", {COPY, COPY, PC_STEP_FILL, PC_STEP_CONSUME, PC_STEP_END}, 1 << 2},
    {"nothing moved", {PC_STEP_WAIT_MESSAGE, PC_STEP_CONSUME, PC_STEP_END}, 0},
    {"nothing moved before the end", {PC_STEP_CONSUME, COPY, PC_STEP_END}, 0},
    {"round a loop", {PC_STEP_LOOP, PC_STEP_FILL, COPY, PC_STEP_END_LOOP, PC_STEP_END}, 1 << 1},
    {"into a loop",
     {COPY, PC_STEP_LOOP, PC_STEP_FILL, COPY, PC_STEP_CONSUME, PC_STEP_END_LOOP, PC_STEP_END},
     1 << 2 | 1 << 4},
    {"out of a loop", {PC_STEP_LOOP, COPY, PC_STEP_END_LOOP, PC_STEP_FILL, PC_STEP_END}, 1 << 3},
};

int main(void)
{
    int wrong = 0;
    for (size_t t = 0; t < sizeof trials / sizeof *trials; t++) {
        struct pc_vm_instruction code[8] = {{0}};
        uint32_t n = 0, meet = 0;
        do
            code[n].step = trials[t].steps[n];
        while (code[n++].step != PC_STEP_END);
        pc__place_barriers(code, n, false);
        for (uint32_t i = 0; i < n; i++)
            meet |= (uint32_t)((code[i].flags & PC_FLAG_SYNC) != 0) << i;
        if (meet != trials[t].meet) {
            fprintf(stderr, "%s: got %#x, want %#x\n", trials[t].name, meet, trials[t].meet);
            wrong = 1;
        }
    }
    return wrong;
}
