/* The line of the user's code that makes a call: of the innermost frame that is none of pycoll's.
 *
 * A frame object for each call would cost more than a short call takes, so this reads the
 * interpreter's own frames, by offsets that are those of one minor version of CPython each. Where
 * the version is another, or Python finds that they do not hold, places are not known. What
 * a place is, is found out when somebody asks: a code object that is met first is kept for that,
 * with the address of its first instruction. */
#include "python/place.h"
#include <string.h>

#define CODES 512u /* places in more code objects are not known */
#define PROBES 8u
#define HOPS 16u /* frames of pycoll between the user's and the call */

struct layout {                         /* offsets in bytes */
    uint16_t state_frame, cframe_frame; /* from the thread's state; 3.11 and 3.12: via its cframe */
    uint16_t code, previous, instruction, owner;
};

enum { NO_CFRAME = 0xffff, OWNED_BY_C = 3 };

static const struct layout layouts[] = {
    {56, 8, 32, 48, 56, 69},       /* 3.11 */
    {56, 0, 0, 8, 56, 70},         /* 3.12 */
    {72, NO_CFRAME, 0, 8, 56, 70}, /* 3.13 */
};

struct known {
    PyObject *code; /* kept: its number stands in events */
    const char *first;
    uint32_t number; /* 0: pycoll's own */
};

static const struct layout *layout; /* NULL: not known */
static struct known table[CODES];
static PyObject *codes;   /* list, by number */
static PyObject *folders; /* tuple of those whose code is none of the user's */

static inline const char *at(const char *base, uint16_t offset)
{
    return *(const char *const *)(base + offset);
}

static const char *innermost(void)
{
    const char *frame = at((const char *)PyThreadState_Get(), layout->state_frame);
    return layout->cframe_frame == NO_CFRAME ? frame : at(frame, layout->cframe_frame);
}

/* The offset of the instruction that a code object's innermost frame is at; -1 if it has none. */
static long offset_of(PyObject *code)
{
    PyObject *frame = (PyObject *)PyThreadState_GetFrame(PyThreadState_Get());
    long offset = -1;
    while (frame != NULL && frame != Py_None && offset < 0) {
        PyObject *own = PyObject_GetAttrString(frame, "f_code");
        if (own == code) {
            PyObject *last = PyObject_GetAttrString(frame, "f_lasti");
            offset = last ? PyLong_AsLong(last) : -1;
            Py_XDECREF(last);
        }
        Py_XDECREF(own);
        PyObject *back = PyObject_GetAttrString(frame, "f_back");
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return offset;
}

static bool is_own(PyObject *code)
{
    PyObject *file = PyObject_GetAttrString(code, "co_filename");
    PyObject *own = file ? PyObject_CallMethod(file, "startswith", "(O)", folders) : NULL;
    bool is = own == Py_True;
    Py_XDECREF(own);
    Py_XDECREF(file);
    return is;
}

/* Takes a code object in; false where there is no room, or something is not as expected. */
static bool meet(struct known *entry, PyObject *code, const char *instruction)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace); /* the call may be made while an error is handled */
    long offset = offset_of(code);
    bool good = offset >= 0;
    entry->number = 0;
    if (good && !is_own(code)) {
        good = PyList_Append(codes, code) == 0;
        entry->number = (uint32_t)PyList_Size(codes);
    }
    if (good) {
        entry->first = instruction - offset;
        entry->code = Py_NewRef(code);
    }
    PyErr_Clear();
    PyErr_Restore(type, error, trace);
    return good;
}

/* What is known of a frame's code; NULL: nothing. */
static const struct known *known_of(const char *frame)
{
    PyObject *code = (PyObject *)at(frame, layout->code);
    uint64_t hash = (uint64_t)(uintptr_t)code * UINT64_C(0x9E3779B97F4A7C15) >> 40;
    for (uint32_t k = 0; k < PROBES; k++) {
        struct known *entry = &table[(hash + k) % CODES];
        if (entry->code == code)
            return entry;
        if (entry->code == NULL)
            return meet(entry, code, at(frame, layout->instruction)) ? entry : NULL;
    }
    return NULL;
}

uint64_t pc__place(void)
{
    if (layout == NULL)
        return 0;
    const char *frame = innermost();
    for (uint32_t hop = 0; frame != NULL && hop < HOPS;
         frame = at(frame, layout->previous), hop++) {
        if (frame[layout->owner] == OWNED_BY_C)
            continue;
        const struct known *k = known_of(frame);
        if (k == NULL)
            return 0;
        if (k->number != 0)
            return (uint64_t)k->number << 32
                   | (uint32_t)(at(frame, layout->instruction) - k->first);
    }
    return 0;
}

/* Forgets what it has met, but not the numbers that stand in events. */
static void forget(void)
{
    for (uint32_t k = 0; k < CODES; k++)
        Py_CLEAR(table[k].code);
}

PyObject *pc__place_begin(PyObject *self, PyObject *own)
{
    (void)self;
    uint32_t minor = (Py_Version >> 16 & 0xff) - 11, major = Py_Version >> 24;
    bool served = own != Py_None && major == 3 && minor < sizeof layouts / sizeof layouts[0];
    if (codes == NULL && (codes = PyList_New(0)) == NULL)
        return NULL;
    layout = NULL;
    forget();
    PyObject *before = folders;
    folders = Py_NewRef(own);
    Py_XDECREF(before);
    layout = served ? &layouts[minor] : NULL;
    return PyBool_FromLong(served);
}

PyObject *pc__place_now(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromUnsignedLongLong(pc__place());
}

PyObject *pc__places(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return codes ? PyList_GetSlice(codes, 0, PyList_Size(codes)) : PyList_New(0);
}
