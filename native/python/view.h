/* The view of an array that a call is given; held, so that nobody frees or resizes it meanwhile. */
#ifndef PC_VIEW_H
#define PC_VIEW_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

struct pc__view {
    char *at;
    uint64_t nbytes;
    int dtype;
    int ndim;
    const Py_ssize_t *shape;
    PyObject *array;  /* numpy's own, held by this reference; or NULL: `buffer` holds it */
    Py_buffer buffer; /* not written where `array` is */
};

/* False, and no exception: it is no contiguous array (`writable`: that may be written) of a dtype
 * of Programs. */
bool pc__view_hold(PyObject *x, bool writable, struct pc__view *view);
void pc__view_release(struct pc__view *view);
#endif
