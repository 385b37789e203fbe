/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn._tarn, the C extension under the Python package: declarations shared by its files.
 *
 *   module.c   the module, dtypes and error names        args.c    keywords of calls that must be quick
 *   client.c   Client: open, enter, leave, close, fork   call.c    blocking calls: GIL released, Ctrl-C
 *   arena.c    memory of one call                        batch.c   keys and values of one call as items
 *   value.c    a Python object as tensor and pieces      array.c   arrays of any strides as pieces
 *   dtype.c    element types                             get.c put.c lookup.c   the methods
 *   error.c    codes as exceptions                       info.c    TensorInfo
 *   torch.c dlpack.c cuda_array.c piece.c   values of other libraries; raw memory
 *   cuda.c     the caller's streams                      log.c     the library's lines
 *   view.c     views of objects in place                 session.c puts in parts
 *   operation.c submit.c  submitted operations           register.c registered memory
 *   manage.c   calls that move no bytes                  after.c   the caller's events
 *   window.c lease.c window_memory.c   memory that is lent            reach.c   memory that others lend
 *   channel.c   messages                                 layout.c  paged buffers
 *   table.c     objects that kernels read
 *
 * Rules:
 *
 *   GIL     The GIL guards everything here, except where a comment says otherwise. It is released while
 *           libtarn is called for something that may wait. Nothing of Python is touched without it.
 *   Enter   Every use of client->lib is between client_enter() and client_leave(), on one thread, which
 *           holds a reference to the Client meanwhile (a method's `self` is one). Enter fails with Closed or
 *           Forked.
 *   Hold    An object that outlives a call and needs the open client (a view) takes client_hold() and
 *           releases it with client_unhold(). The C client is closed after the last release.
 *   Memory  A batch holds references to all keys and buffers, and is freed when nothing uses them.
 *   Errors  Functions that return int return 0, or -1 with a Python exception set. Those that return
 *           libtarn's codes say so.
 */
#ifndef TARN_PYTHON_EXT_H
#define TARN_PYTHON_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/channel.h>
#include <tarn/tarn.h>
#include <tarn/window.h>

/* Codes of the package itself, besides libtarn's. */
enum {
    EXT_E_TENSOR_MISMATCH = -100, /* dtype or shape */
    EXT_E_FORKED = -101,
    EXT_RAISED = -102, /* internal: a Python exception is set */
};

#define WHY_BYTES 512

/* --- error.c ------------------------------------------------------------------------------------ */

/* Raises the exception of the code; key (str or bytes) and why may be NULL. Always returns -1. */
int raise_code(int code, PyObject *key, const char *why);
/* After a call of libtarn, before this thread makes another: 0, or -1 with an exception: that of a signal's
 * handler, else one of the code and the last error. */
int raise_call(int rc, PyObject *key);
int raise_why(int code, PyObject *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Ends the pending exception. Returns its text, a new reference; NULL, perhaps with an exception: it has
 * none. */
PyObject *take_exception(void);
/* Registers what makes exceptions: a callable (code, key, why) -> exception, tarn._errors.make. */
PyObject *error_set_maker(PyObject *module, PyObject *maker);

int raise_mismatch(PyObject *key, const struct tarn_tensor *stored, const struct tarn_tensor *given);

/* --- arena.c ------------------------------------------------------------------------------------ */

/* Memory that is freed all at once. The arena contains its first bytes itself, so it must not move. */
struct arena {
    char *at, *end;
    struct arena_chunk *chunks;
    _Alignas(16) char first[1536];
};

void arena_init(struct arena *a);
/* 16-byte aligned, not zeroed; NULL with MemoryError. */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_zalloc(struct arena *a, size_t bytes);
void arena_free(struct arena *a);

/* --- args.c ------------------------------------------------------------------------------------- */

#define ARGS_MAX 16

/* The arguments of a METH_FASTCALL | METH_KEYWORDS method, in order. `required` of them must be given. The
 * first `positional` may be given without a name. */
struct args_spec {
    const char *function;
    unsigned required, positional;
    const char *names[ARGS_MAX];
    /* filled at the first use */
    unsigned count;
    PyObject *interned[ARGS_MAX];
};

/* out[i]: a borrowed reference, or NULL if it was not given. None stays Py_None. */
int args_parse(struct args_spec *spec, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
               PyObject **out);
/* The following leave *out unchanged if o is NULL or None. */
int args_seconds(PyObject *o, const char *name, uint32_t *ms);
int args_number(PyObject *o, const char *name, uint32_t least, uint32_t most, uint32_t *out);
int args_u64(PyObject *o, const char *name, uint64_t *out);
int args_text(PyObject *o, const char *name, const char **out);
int args_flag(PyObject *o, const char *name, uint32_t flag, uint32_t *flags);
/* A CUDA handle: an int, or an object of torch's that has it as this attribute. Sets *out. */
int args_handle(PyObject *o, const char *name, const char *attribute, const char *needed, void **out);
/* A new list or tuple of an iterable's items; str and bytes are refused. */
PyObject *args_list(PyObject *o, const char *name, const char *needed);
bool is_mapping(PyObject *o);
/* A whole number, of any type; not an array, which may convert to one. */
bool is_number(PyObject *o);
/* _seconds(name, value): a float or None, checked like a timeout. */
PyObject *args_checked_seconds(PyObject *module, PyObject *args);
/* TypeError: "NAME: of type TYPE: give NEEDED". Always returns -1. */
int raise_type(const char *name, PyObject *o, const char *needed);
/* The UTF-8 bytes of a str; NULL with an exception. */
const char *text_utf8(PyObject *o, const char *name, Py_ssize_t *n);

/* --- client.c ----------------------------------------------------------------------------------- */

struct lines;   /* log.c */
struct window;  /* window.h */
struct channel; /* channel.c */

struct client {
    PyObject_HEAD struct tarn_client *lib; /* NULL: not open yet, or closed */
    uint32_t timeout_ms;                   /* the default for its calls */
    unsigned generation;                   /* value of fork_generation() when it was opened */
    unsigned calls, holds;
    bool closed, closing;
    pthread_mutex_t drain_lock;   /* see struct op */
    struct operation *operations; /* in flight: operation.c */
    size_t noperations;
    struct window *windows; /* that are lent, without references: window.c */
    struct lines *lines;    /* NULL: no logger */
    PyObject *logger;
    PyObject *weakrefs;
};

extern PyTypeObject client_type;
int client_setup(void);
int client_enter(struct client *c);
void client_leave(struct client *c);
void client_hold(struct client *c);
void client_unhold(struct client *c);
/* Sleeps without the GIL until a thread has left a call, or for a moment. Callers check again in a loop. */
void wait_left(void);
void tell_left(void);
/* If another thread is ending the C client: returns when it has ended. */
void client_await_end(const struct client *c);
/* Has it ended, and with it what the C library had of its parts? Also in a child process. */
bool client_is_over(const struct client *c);
/* How many forks led to this process since the module was loaded. */
unsigned fork_generation(void);

/* --- value.c ------------------------------------------------------------------------------------ */

struct batch;

#define HOST_MEMORY (-1)

/* A Python object as tarn sees it. */
struct value {
    struct tarn_tensor tensor;
    const struct tarn_piece *pieces;  /* `one`, or of the batch's arena */
    uint32_t npieces;                 /* of pieces, or of pages */
    const struct tarn_layout *layout; /* has pages in place of pieces; NULL: none */
    const uint32_t *pages;
    bool raw;   /* bytes: suits any object */
    int device; /* CUDA's ordinal of its GPU, or HOST_MEMORY */
    struct tarn_piece one;
};

/* Fills *v. The batch keeps what it points to. b->writable: the value will be written. v must not move
 * until the batch is freed. */
int value_of(struct batch *b, PyObject *o, struct value *v);
int value_setup(void);

/* An array in memory; strides in bytes. */
struct array {
    char *base;
    uint32_t dtype;
    int device;
    int ndim;
    Py_ssize_t shape[TARN_DIMS_MAX], strides[TARN_DIMS_MAX];
};

/* For an object that is an array of some kind. The batch keeps it. */
int array_of(struct batch *b, PyObject *o, struct array *l);
/* Makes v's tensor and pieces from the array: the pieces, in C order, of the part without the first
 * `skip` dimensions, `offset` bytes from the base. Copies no bytes. */
int array_pieces(struct batch *b, const struct array *l, int skip, Py_ssize_t offset, struct value *v);
/* The dtype of "float32" (NumPy's and torch's names), or -1 without an exception. */
int dtype_of_framework(const char *name);
/* For NumPy's letter of a kind (u, i, f, c, b) and bytes; -1 without an exception. */
int dtype_of_kind(char kind, Py_ssize_t bytes);
/* For a format of the buffer protocol; -1 with an exception. */
int dtype_of_format(const char *format, Py_ssize_t itemsize);
/* For a dtype given by name or as an object of NumPy's or torch's; -1 with an exception. */
int dtype_of_object(PyObject *o);
/* Sets dtype and shape if given (not NULL or None). v's bytes must fit. */
int value_declare(struct value *v, PyObject *dtype, PyObject *shape);
/* Sets only the shape, not the bytes. */
int tensor_set_shape(struct tarn_tensor *t, PyObject *shape);
bool tensor_equal(const struct tarn_tensor *a, const struct tarn_tensor *b);

/* Kinds of arrays. The batch keeps o. */
int array_of_torch(struct batch *b, PyObject *o, struct array *l); /* torch.c, from a Tensor's attributes */
int array_of_cuda_array(struct batch *b, PyObject *o,
                        struct array *l); /* cuda_array.c, __cuda_array_interface__ */
int array_of_dlpack(struct batch *b, PyObject *o, struct array *l); /* dlpack.c, __dlpack__ */
bool torch_is_loaded(void);
/* The stream of an argument: an int or an object of torch's. NULL or None: torch's current one for the GPU.
 */
int stream_of(PyObject *o, int device, void **stream);
/* A new tensor of n int32 where the tensor `like` is. INVALID: it is none. */
PyObject *torch_new_int32(PyObject *like, uint32_t n);
/* dlpack.c: the table of functions on types of newer frameworks (torch from 2.10 on), which do the same
 * without Python objects; NULL if a type has none. */
struct dlpack_api;
const struct dlpack_api *dlpack_api_of(PyTypeObject *type);
int array_of_dlpack_api(struct batch *b, PyObject *o, const struct dlpack_api *api, struct array *l);
/* UNSUPPORTED if the memory does not hold the tensor's values. */
int torch_check_lazy(PyObject *o, uint32_t dtype);
int torch_setup(void);
int dlpack_setup(void);
/* Dimension d, starting with the last: its length, and its stride in elements unless it is dense. *step:
 * bytes of the dimensions after it. */
int array_dim(struct array *l, int d, Py_ssize_t length, Py_ssize_t stride, bool dense, Py_ssize_t *step);
/* Sets the shape, and strides in elements, from tuples. strides NULL or None: contiguous. */
int array_dims(struct array *l, PyObject *shape, PyObject *strides);

/* piece.c: raw memory. */
extern PyTypeObject piece_type;
int value_of_piece(struct batch *b, PyObject *o, struct value *v);

/* layout.c */
struct layout;
extern PyTypeObject layout_type, pages_type;
int value_of_pages(struct batch *b, PyObject *o, struct value *v);
/* Divides pages among all items of the batch. */
int values_of_pages(struct batch *b, PyObject *o);

/* --- cuda.c ------------------------------------------------------------------------------------- */

#define STREAMS_MAX 8

/* A stream whose earlier work must be done before the values are accessed. */
struct stream {
    int device;
    void *handle; /* cudaStream_t */
};

struct event; /* recorded after the streams' work */

/* The batch's values are used on this stream. At most STREAMS_MAX. */
int cuda_use(struct batch *b, int device, void *stream);
/* Was the framework's current stream of the device asked for in this batch? Marks it as asked for. */
bool cuda_asked(struct batch *b, int device);
/* Records an event after all of the batch's streams. *after: for the options; NULL if there are no
 * streams. The batch owns it until batch_free(). */
int cuda_after(struct batch *b, void **after);
void cuda_forget(struct batch *b);
/* Makes the device's primary context current; cuda_leave() undoes it. */
int cuda_enter(int device);
void cuda_leave(void);
/* Has the event passed? 1, 0, or CUDA's error as a negative number. Needs no GIL, after cuda_is_there(). */
int cuda_passed(void *event);
bool cuda_is_there(void);
/* Has this process loaded the driver, so that it may have GPU memory? */
bool cuda_is_used(void);
/* The GPU of an address, or HOST_MEMORY, also without CUDA. */
int cuda_device_of(struct batch *b, const void *addr);

/* --- batch.c ------------------------------------------------------------------------------------ */

/* Keys and values of one call. Must not move between batch_init() and batch_free(). */
struct batch {
    struct arena arena;
    struct client *client;
    bool writable;    /* a get: values are written to */
    bool takes_pages; /* Pages may be among its values */
    bool on_stream;   /* they are used on the caller's stream: nobody is asked to order it behind another */
    size_t n;
    struct tarn_item *items;
    struct value *values;
    PyObject **keys;      /* borrowed from refs */
    struct ref *refs;     /* kept alive */
    struct held *buffers; /* kept exported */
    uint64_t bytes;       /* of all values */
    struct stream streams[STREAMS_MAX];
    unsigned nstreams;
    uint64_t asked;      /* bit set of devices, see cuda_asked() */
    struct event *event; /* NULL: none */
    /* The allocation that cuda_device_of() last found. no_gpus: the process has no driver. */
    uintptr_t seen_begin, seen_end;
    int seen_device;
    bool no_gpus;
    const struct layout *seen_layout; /* the last one, and where its arrays are */
    int seen_layout_device;
    struct tarn_key continues; /* a put: what its first item continues */
    char why[WHY_BYTES];       /* the failed call's sentence; "" else */
};

void batch_init(struct batch *b, struct client *c, bool writable);
/* Makes room for n zeroed items. */
int batch_reserve(struct batch *b, size_t n);
/* Sets item i. The batch keeps both objects. */
int batch_set(struct batch *b, size_t i, PyObject *key, PyObject *value);
int batch_set_key(struct batch *b, size_t i, PyObject *key, struct tarn_key *k);
/* A key of no item, which the batch keeps. */
int batch_key(struct batch *b, PyObject *key, struct tarn_key *k);
/* Takes one array whose row i belongs to key i; or pages, as many for each key. */
int batch_set_rows(struct batch *b, PyObject *values);
/* Makes room for n values that belong to no keys. */
int batch_values(struct batch *b, size_t n);
int batch_keep(struct batch *b, PyObject *o);
/* Like PyObject_GetBuffer(), but released with the batch. NULL with an exception. */
Py_buffer *batch_buffer(struct batch *b, PyObject *o, int flags);
/* At most `most` bytes of an object with the buffer protocol, which the batch keeps. */
int batch_bytes(struct batch *b, PyObject *o, const char *name, uint32_t most, const void **data,
                uint32_t *bytes);
/* Needs the GIL. */
void batch_free(struct batch *b);
/* For PySequence_Fast_GET_ITEM(); new reference. A single key is refused. */
PyObject *keys_list(PyObject *keys);
/* Keys of a list, tuple or other sequence, as an array in the arena. */
int batch_keys(struct batch *b, PyObject *keys, struct tarn_key **keys_p, size_t *n_p);

/* --- call.c ------------------------------------------------------------------------------------- */

/*
 * A submitted operation. Its address is the cookie given to submit. Any thread may drain completions, even
 * one that waits for another operation. So all draining goes through ops_take() and all waiting through
 * op_wait().
 */
struct op {
    tarn_op id;
    struct tarn_completion done;
    bool complete; /* `done` is set; guarded by the client's drain_lock */
};

/* Takes completions and hands them to their struct op. Returns their number, or libtarn's code. Runs
 * without the GIL and never waits. */
int ops_take(struct client *c);
#define OPS_TAKE_MAX 16 /* if it returns this many, there may be more */
bool op_complete(struct client *c, struct op *op);
/* 0: op->done is set. TARN_E_TIMEOUT: not within ms. Runs without the GIL. */
int op_wait(struct client *c, struct op *op, uint32_t ms);

/*
 * Blocking calls with the GIL released. They can be interrupted in the thread where Python checks for
 * signals (the main thread). They return libtarn's code, with its sentence in b->why, or EXT_RAISED if a
 * signal handler raised.
 */
int call_get(struct batch *b, const struct tarn_get_options *o);
int call_put(struct batch *b, const struct tarn_put_options *o);
int call_remove(struct batch *b, const struct tarn_key *keys, size_t n, int32_t *statuses,
                uint32_t timeout_ms);

/* Does Python check for signals in this thread? */
bool in_main_thread(void);

/* A tarn_interrupt_fn: has a signal's handler raised? */
int interrupted(void *unused);
/* Called without the GIL. */
typedef int (*plain_fn)(void *arg, uint32_t timeout_ms);
/* Enters the client and makes a call without a submitted twin. 0, or -1 with an exception about key. */
int call_plain(struct client *c, plain_fn fn, void *arg, uint32_t timeout_ms, PyObject *key);

/* --- after.c ------------------------------------------------------------------------------------ */

/* The event of an argument `after`: a torch.cuda.Event or an int. *event is unchanged for NULL or None. */
int after_of(PyObject *o, void **event);
/* Milliseconds of the monotonic clock. */
uint64_t now_ms(void);
/* Waits until the event has passed. event NULL: until the earlier work of the batch's streams is done. */
int after_wait(struct batch *b, void *event, uint32_t timeout_ms);

/* --- info.c ------------------------------------------------------------------------------------- */

/* A TensorInfo, new reference. */
PyObject *info_new(const struct tarn_tensor *t);
extern PyTypeObject info_type;
int info_setup(void);
/* Interned name of a dtype, new reference. */
PyObject *dtype_name(uint32_t dtype);

/* --- methods ------------------------------------------------------------------------------------ */

struct hits {
    PyObject_HEAD struct tarn_hits *lib;
    struct client *client;
    PyObject *keys; /* a tuple, one for each */
    size_t pages;
};

extern PyTypeObject hits_type, view_type, session_type, operation_type, registration_type, window_type,
    lease_type, window_memory_type, reach_type, channel_type, table_type;
extern PyMethodDef get_methods[], put_methods[], lookup_methods[], view_methods[], session_methods[],
    operation_methods[], submit_methods[], manage_methods[], register_methods[], channel_methods[],
    table_methods[];
PyObject *transports(PyObject *module, PyObject *unused);
/* __enter__() of a type that is open already. */
PyObject *return_self(PyObject *self, PyObject *unused);
#define PUT_OPTIONS "replace", "pin", "ttl", "replicas", "place", "timeout", "chain"
/* Seven arguments of every put: those of PUT_OPTIONS. The batch keeps what `chain` names. */
int put_options(struct batch *b, PyObject *const *arg, struct tarn_put_options *o);
/* keys and values: two sequences of equal length, or values is one array of rows. */
int get_fill(struct batch *b, PyObject *keys, PyObject *values);
/* Checks items after the call: the objects must match the values, unless bytes were asked for. */
void get_check(struct batch *b);
/* Did the call as a whole fail, so that items have no outcome? A failed item is no failure of the call. */
bool call_failed_whole(int rc, const int32_t *first, size_t stride, size_t n);
bool get_failed_whole(const struct batch *b, int rc);
/* For each item bytes or its code; for each item (status, TensorInfo or None). */
PyObject *get_outcomes(const struct batch *b);
PyObject *get_fetched(const struct batch *b);
/* From a mapping, or an iterable of (key, value). */
int put_fill(struct batch *b, PyObject *pairs);
/* A list of n statuses, which lie `stride` bytes apart. */
PyObject *codes_of(const int32_t *first, size_t stride, size_t n);
PyObject *put_codes(const struct batch *b);
/* Of the batch's keys. Takes ownership of lib, even on failure. */
PyObject *hits_new(const struct batch *b, struct tarn_hits *lib, uint32_t stride);
/* Cancels all operations in flight, as close() does first. */
void operations_cancel(struct client *c);
/* NULL and None: no hits. They must be this client's, and at least n. */
int hits_of(PyObject *o, struct client *c, size_t n, const struct tarn_hits **hits);

/* --- log.c -------------------------------------------------------------------------------------- */

/* Log lines from any of libtarn's threads, kept until a thread with the GIL passes them to the logger. */
struct lines *lines_new(void);
void lines_free(struct lines *l);
void lines_add(void *lines, enum tarn_log_level level, const char *line); /* a tarn_log_fn */
/* Passes pending lines to the logger. Keeps a pending exception; ignores the logger's errors. */
void lines_give(struct lines *l, PyObject *logger);

#endif
