/* Records as Python objects: a list of bytes out of a block in one call, which no foreign-function interface can make.
 *
 * Limited API, no state. Memory comes in as addresses of buffers that the caller keeps alive, since the buffer protocol
 * is outside of the limited API of the oldest Python served. What reads foreign lengths is in received.c, which needs no
 * Python and so is among what the sanitizers and the fuzzer see. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "received.h"
#include "scan.h"
#include "status.h"

/* Puts a record at a place of a list; 0 when memory gives out. */
static int put(PyObject *list, Py_ssize_t at, const uint8_t *record, size_t len)
{
    PyObject *item = PyBytes_FromStringAndSize((const char *)record, (Py_ssize_t)len);
    return item != NULL && PyList_SetItem(list, at, item) == 0;
}

static PyObject *from_spans(PyObject *module, PyObject *args)
{
    unsigned long long content_at, spans_at;
    Py_ssize_t first, end;
    PyObject *list;

    (void)module;
    if (!PyArg_ParseTuple(args, "KKnn", &content_at, &spans_at, &first, &end))
        return NULL;
    const uint8_t *content = (const uint8_t *)(uintptr_t)content_at;
    const uint64_t *spans = (const uint64_t *)(uintptr_t)spans_at;
    if ((list = PyList_New(end > first ? end - first : 0)) == NULL)
        return NULL;
    for (Py_ssize_t i = first; i < end; i++) {
        const uint8_t *record = content + (uint32_t)spans[i];
        size_t len = (size_t)(spans[i] >> 32);
        if (i + 8 < end)
            __builtin_prefetch(content + (uint32_t)spans[i + 8]);
        len -= len > 0 && record[len - 1] == 0x0A;
        if (!put(list, i - first, record, len)) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

/* Puts n records, each behind its u32 length, into a list from place `filled` on; where the next goes, or -1 when memory gives out. */
static Py_ssize_t fill(PyObject *list, Py_ssize_t filled, const uint8_t *at, size_t n)
{
    for (; n > 0; n--) {
        uint32_t size = shuflr_load_u32(at);
        if (!put(list, filled++, at + 4, size))
            return -1;
        at += 4 + size;
    }
    return filled;
}

static PyObject *from_prefixed(PyObject *module, PyObject *args)
{
    unsigned long long data_at;
    Py_ssize_t len, n;
    PyObject *list;

    (void)module;
    if (!PyArg_ParseTuple(args, "Knn", &data_at, &len, &n))
        return NULL;
    const uint8_t *data = (const uint8_t *)(uintptr_t)data_at;
    if (n < 0 || !shuflr_prefixed_fit(data, (size_t)len, (size_t)n)) {
        PyErr_SetString(PyExc_ValueError, "a record reaches beyond its batch");
        return NULL;
    }
    if ((list = PyList_New(n)) != NULL && fill(list, 0, data, (size_t)n) < 0) {
        Py_DECREF(list);
        return NULL;
    }
    return list;
}

static PyObject *from_batches(PyObject *module, PyObject *args)
{
    unsigned long long data_at;
    Py_ssize_t len, filled = 0;
    size_t used, records;
    PyObject *list;

    (void)module;
    if (!PyArg_ParseTuple(args, "Kn", &data_at, &len))
        return NULL;
    const uint8_t *data = (const uint8_t *)(uintptr_t)data_at;
    switch (shuflr_measure_batches(data, (size_t)len, &used, &records)) {
    case SHUFLR_WRONG_CHECKSUM:
        PyErr_SetString(PyExc_ValueError, "a batch does not match its checksum: bytes were damaged on the way");
        return NULL;
    case SHUFLR_BAD_INDEX:
        PyErr_SetString(PyExc_ValueError, "a record reaches beyond its batch");
        return NULL;
    }
    if ((list = PyList_New((Py_ssize_t)records)) == NULL)
        return NULL;
    for (size_t at = 0; at < used; at += shuflr_batch_size(data + at)) {
        if ((filled = fill(list, filled, shuflr_batch_records(data + at), shuflr_batch_count(data + at))) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return Py_BuildValue("Nn", list, (Py_ssize_t)used);
}

static PyObject *from_lines(PyObject *module, PyObject *args)
{
    unsigned long long data_at;
    Py_ssize_t len, n = 1;
    PyObject *list;

    (void)module;
    if (!PyArg_ParseTuple(args, "Kn", &data_at, &len))
        return NULL;
    const char *at = (const char *)(uintptr_t)data_at, *end = at + len, *lf;
    n += (Py_ssize_t)shuflr_count_lf((const uint8_t *)at, (size_t)len);
    if ((list = PyList_New(n)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        lf = i + 1 < n ? memchr(at, 0x0A, (size_t)(end - at)) : end;
        if (!put(list, i, (const uint8_t *)at, (size_t)(lf - at))) {
            Py_DECREF(list);
            return NULL;
        }
        at = lf + 1;
    }
    return list;
}

static PyMethodDef methods[] = {
    {"from_lines", from_lines, METH_VARARGS,
     "from_lines(data, length): the records that end in the memory at address data, without their LFs, and behind them "
     "what follows the last LF."},
    {"from_spans", from_spans, METH_VARARGS,
     "from_spans(content, spans, first, end): the records first..end of spans (start | length << 32) over content, "
     "without their LFs. Both are addresses."},
    {"from_prefixed", from_prefixed, METH_VARARGS,
     "from_prefixed(data, length, n): n records, each behind its u32 length, out of the memory at address data. Raises "
     "ValueError."},
    {"from_batches", from_batches, METH_VARARGS,
     "from_batches(data, length): the records of the whole plain batches at the beginning of the memory at address "
     "data, checked, and how many bytes these are. Raises ValueError."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_records", "Lists of records out of blocks of bytes.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__records(void)
{
    return PyModuleDef_Init(&definition);
}
