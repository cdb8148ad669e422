/* Views of arrays: by the buffer protocol, or of numpy's own arrays by the fields of their struct.
 *
 * numpy takes 500 instructions to describe an array by the buffer protocol, which is more than the
 * engine takes for a small all-reduce. The struct is a part of numpy's ABI: whatever is compiled
 * with numpy's headers reads it, after it has asked for the version of the ABI as is done here. The
 * dtype of an array is known by the address of its descriptor, once an array that has the same one
 * came by the buffer protocol. */
#include "python/view.h"
#include <string.h>
#include "core/internal.h"

struct ndarray { /* PyArrayObject_fields */
    PyObject_HEAD
    char *data;
    int nd;
    const Py_ssize_t *dimensions, *strides;
    PyObject *base, *descr;
    int flags;
};

/* numpy's names without their NPY_; all of them bits of `flags`. */
#define ARRAY_C_CONTIGUOUS 0x0001
#define ARRAY_ALIGNED 0x0100
#define ARRAY_WRITEABLE 0x0400
#define ARRAY_WARN_ON_WRITE (1 << 31)

#define ABI_VERSION_1 0x01000009u
#define ABI_VERSION_2 0x02000000u

/* The first entries of the table that numpy gives extensions. */
#define API_ABI_VERSION 0
#define API_NDARRAY 2

struct known {
    PyObject *descr; /* kept, so that no other one gets its address */
    int dtype;
    uint32_t itemsize;
};

#define MOST_KNOWN 24u /* more than numpy has descriptors of its own that a Program can take */
static struct known known[MOST_KNOWN];
static uint32_t nknown;
static const PyTypeObject *ndarray; /* NULL: numpy is not known, or has another ABI */
static bool looked;                 /* at numpy, which was loaded */

/* The dtype of a view's elements: the format letter tells the kind and, since 'l' may be 4 or 8
 * bytes long, itemsize the width. -1 when there is none, or the byte order is not native. */
static int dtype_of(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    Py_ssize_t size = view->itemsize;
    if (format[0] == '@' || format[0] == '='
        || (format[0] == '<' && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__))
        format++;
    if (format[0] == 0)
        return -1;
    if (format[1] != 0) {
        if (strcmp(format, "Zf") == 0 && size == 8)
            return PC_DTYPE_COMPLEX64;
        return strcmp(format, "Zd") == 0 && size == 16 ? PC_DTYPE_COMPLEX128 : -1;
    }
    switch (format[0]) {
    case 'd':
        return size == 8 ? PC_DTYPE_FLOAT64 : -1;
    case 'f':
        return size == 4 ? PC_DTYPE_FLOAT32 : -1;
    case 'e':
        return size == 2 ? PC_DTYPE_FLOAT16 : -1;
    case 'b':
        return size == 1 ? PC_DTYPE_INT8 : -1;
    case 'B':
        return size == 1 ? PC_DTYPE_UINT8 : -1;
    case '?':
        return size == 1 ? PC_DTYPE_BOOL : -1;
    case 'h':
        return size == 2 ? PC_DTYPE_INT16 : -1;
    case 'H':
        return size == 2 ? PC_DTYPE_UINT16 : -1;
    case 'i':
    case 'l':
    case 'q':
        return size == 4 ? PC_DTYPE_INT32 : size == 8 ? PC_DTYPE_INT64 : -1;
    case 'I':
    case 'L':
    case 'Q':
        return size == 4 ? PC_DTYPE_UINT32 : size == 8 ? PC_DTYPE_UINT64 : -1;
    default:
        return -1;
    }
}

/* Looks for numpy's type of arrays once numpy is loaded. */
static void look(void)
{
    static const char *const modules[]
        = {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"}; /* numpy 2, 1 */
    for (size_t i = 0; i < 2 && !looked; i++) {
        PyObject *name = PyUnicode_FromString(modules[i]);
        PyObject *module = name ? PyImport_GetModule(name) : NULL;
        PyObject *capsule = module ? PyObject_GetAttrString(module, "_ARRAY_API") : NULL;
        void **api = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
        if (api != NULL) {
            unsigned (*abi)(void) = (unsigned (*)(void))api[API_ABI_VERSION];
            unsigned version = abi();
            looked = true;
            if (version == ABI_VERSION_1 || version == ABI_VERSION_2)
                ndarray = api[API_NDARRAY];
        }
        Py_XDECREF(capsule);
        Py_XDECREF(module);
        Py_XDECREF(name);
        PyErr_Clear(); /* the buffer protocol serves as well */
    }
}

/* Remembers the descriptor of an array of numpy that came by the buffer protocol. */
static void learn(PyObject *x, const struct pc__view *view)
{
    if (!looked)
        look();
    if (Py_TYPE(x) != ndarray || nknown == MOST_KNOWN)
        return;
    const struct ndarray *n = (const struct ndarray *)x;
    if (!(n->flags & ARRAY_ALIGNED)) /* its format is another one than its descriptor's */
        return;
    for (uint32_t i = 0; i < nknown; i++)
        if (known[i].descr == n->descr)
            return;
    known[nknown++] = (struct known){.descr = Py_NewRef(n->descr),
                                     .dtype = view->dtype,
                                     .itemsize = (uint32_t)view->buffer.itemsize};
}

static bool hold_ndarray(PyObject *x, bool writable, struct pc__view *view)
{
    const struct ndarray *n = (const struct ndarray *)x;
    int want = ARRAY_C_CONTIGUOUS | ARRAY_ALIGNED | (writable ? ARRAY_WRITEABLE : 0);
    if ((n->flags & (want | ARRAY_WARN_ON_WRITE)) != want)
        return false;
    for (uint32_t i = 0; i < nknown; i++) {
        if (known[i].descr != n->descr)
            continue;
        view->nbytes = known[i].itemsize;
        for (int d = 0; d < n->nd; d++)
            view->nbytes *= (uint64_t)n->dimensions[d];
        view->at = n->data;
        view->dtype = known[i].dtype;
        view->ndim = n->nd;
        view->shape = n->dimensions;
        view->array = Py_NewRef(x);
        return true;
    }
    return false;
}

bool pc__view_hold(PyObject *x, bool writable, struct pc__view *view)
{
    if (Py_TYPE(x) == ndarray && hold_ndarray(x, writable, view))
        return true;
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(x, &view->buffer, flags)) {
        PyErr_Clear();
        return false;
    }
    view->at = view->buffer.buf;
    view->nbytes = (uint64_t)view->buffer.len;
    view->dtype = dtype_of(&view->buffer);
    view->ndim = view->buffer.ndim;
    view->shape = view->buffer.shape;
    view->array = NULL;
    if (view->dtype >= 0) {
        learn(x, view);
        return true;
    }
    PyBuffer_Release(&view->buffer);
    return false;
}

void pc__view_release(struct pc__view *view)
{
    if (view->array != NULL)
        Py_DECREF(view->array);
    else
        PyBuffer_Release(&view->buffer);
}
