/* Errors: a code with its text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include "core/internal.h"

int pc__fail(struct pc_error *error, int code, int peer, const char *format, ...)
{
    int saved = errno;
    va_list args;
    memset(error, 0, sizeof *error);
    error->code = code;
    error->peer = peer;
    error->errnum = code == PC_SYSTEM || code == PC_LOST ? saved : 0;
    va_start(args, format);
    int n = vsnprintf(error->text, sizeof error->text, format, args);
    if (n >= (int)sizeof error->text) /* shows the reader that the text was cut */
        memcpy(error->text + sizeof error->text - 4, "...", 4);
    va_end(args);
    return code;
}

const char *pc_code_name(int code)
{
    switch ((enum pc_code)code) {
    case PC_OK:
        return "OK";
    case PC_AGAIN:
        return "AGAIN";
    case PC_INVALID:
        return "INVALID";
    case PC_NOMEM:
        return "NOMEM";
    case PC_SYSTEM:
        return "SYSTEM";
    case PC_UNMAPPABLE:
        return "UNMAPPABLE";
    case PC_TIMEDOUT:
        return "TIMEDOUT";
    case PC_MISMATCH:
        return "MISMATCH";
    case PC_ABORTED:
        return "ABORTED";
    case PC_BUSY:
        return "BUSY";
    case PC_BROKEN:
        return "BROKEN";
    case PC_LOST:
        return "LOST";
    }
    return "unknown";
}
