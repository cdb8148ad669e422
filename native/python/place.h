/* Where in the user's code a call is made. */
#ifndef PC_PLACE_H
#define PC_PLACE_H
#include "python/fastcall.h"

/* The number of a code object in the high 32 bits, plus one, and the offset of its instruction; 0:
 * not known. */
uint64_t pc__place(void);
/* What module _fastcall offers: place_begin(folders), place(), places(). */
PyObject *pc__place_begin(PyObject *self, PyObject *folders);
PyObject *pc__place_now(PyObject *self, PyObject *unused);
PyObject *pc__places(PyObject *self, PyObject *unused);
#endif
