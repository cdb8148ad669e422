/* What the files of module _fastcall share. */
#ifndef PC_FASTCALL_H
#define PC_FASTCALL_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "core/internal.h"

/* Below this the lock of the interpreter is held while polling: giving it away and taking it back
 * costs more than the whole call. */
#define PC_KEEP_LOCK_BYTES (32u << 10)

/* The element type of a view; -1 when it is none of ours. */
int pc__dtype_of(const Py_buffer *view);
/* fastsend.c: adds type Port to the module. */
int pc__add_send_recv(PyObject *module);
#endif
