/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/lender.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/conformance/content.h"
#include "tests/device.h"
#include "tests/world.h"
#include "transport/tcp/tcp.h"
#include <tarn/window.h>

enum { IDLE = 0xd7, GAP = 64, TAIL = 4096, SLICE_MS = 10, KEY = 32 };
enum { FEW_RUNS = 5 }; /* at most, where the command leaves it to the lender */

/* Contiguous bytes of a lease, in its order. */
struct part {
    uint64_t offset, bytes; /* in the window */
};

struct object {
    struct object *next;
    uint64_t id, bytes;
    uint64_t at, room; /* its place in the window: the runs and the gaps between them */
    struct part *parts;
    uint32_t nparts;
    struct tarn_lease *lease; /* NULL: recalled */
    char key[KEY];            /* "": none */
};

static struct {
    pthread_mutex_t lock; /* all below; not held while a notification is waited for */
    struct tarn_client *client;
    struct device *device; /* NULL: host memory */
    uint8_t *base;
    struct tarn_window *window;
    struct object *objects;
    uint64_t next_id, enough; /* enough: the round in which nothing more is waited for */
} lender = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1, .enough = UINT64_MAX};

/* --- memory ------------------------------------------------------------------------------------- */

static uint64_t random_below(uint64_t *seed, uint64_t below)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (*seed >> 33) % below;
}

static bool all_idle(const uint8_t *p, uint64_t bytes)
{
    return bytes == 0 || (p[0] == IDLE && memcmp(p, p + 1, bytes - 1) == 0);
}

/* Are the bytes of [at, at + room) idle that are not the object's (NULL: all)? */
static int check_idle(uint64_t at, uint64_t room, const struct object *o)
{
    uint8_t *now = malloc(room + 1);
    device_read(lender.device, now, lender.base + at, room);
    for (uint32_t i = 0; o && i < o->nparts; i++)
        memset(now + (o->parts[i].offset - at), IDLE, o->parts[i].bytes);
    bool idle = all_idle(now, room);
    free(now);
    return idle ? 0
                : tarn_fail(TARN_E_PROTOCOL,
                            "bytes of [%" PRIu64 ", %" PRIu64 ") have changed, but nobody had them on lease",
                            at, at + room);
}

static void set_idle(const struct object *o)
{
    device_set(lender.device, lender.base + o->at, IDLE, o->room);
}

static void copy_parts(const struct object *o, uint64_t offset, uint8_t *own, uint64_t bytes, bool in)
{
    for (uint32_t i = 0; i < o->nparts && bytes; i++) {
        uint64_t skip = offset < o->parts[i].bytes ? offset : o->parts[i].bytes;
        uint64_t n = o->parts[i].bytes - skip < bytes ? o->parts[i].bytes - skip : bytes;
        uint8_t *there = lender.base + o->parts[i].offset + skip;
        if (in)
            device_write(lender.device, there, own, n);
        else
            device_read(lender.device, own, there, n);
        offset -= skip;
        own += n;
        bytes -= n;
    }
}

static bool same(const struct object *o, uint64_t offset, uint64_t bytes, const uint8_t *want)
{
    uint8_t *got = malloc(bytes + 1);
    copy_parts(o, offset, got, bytes, false);
    bool yes = memcmp(got, want, bytes) == 0;
    free(got);
    return yes;
}

/* Looks at the last bytes first: they arrive last. */
static int holds(const struct object *o, uint64_t offset, uint64_t bytes, const char *key, uint64_t version)
{
    uint64_t tail = bytes < TAIL ? bytes : TAIL;
    if (bytes > o->bytes || offset > o->bytes - bytes)
        return tarn_fail(TARN_E_SIZE, "lease %" PRIu64 " has %" PRIu64 " bytes", o->id, o->bytes);
    uint8_t *want = malloc(bytes + 1);
    content_fill(want, bytes, key, version);
    bool yes = same(o, offset + bytes - tail, tail, want + bytes - tail) && same(o, offset, bytes, want);
    free(want);
    return yes ? 0
               : tarn_fail(TARN_E_PROTOCOL,
                           "lease %" PRIu64 ": bytes [%" PRIu64 ", +%" PRIu64 ") are not version %" PRIu64
                           " of %s",
                           o->id, offset, bytes, version, key);
}

/* Is each byte of that version, or of the next? */
static int shows(const struct object *o, const char *key, uint64_t version)
{
    uint8_t *got = malloc(o->bytes + 1), *want = malloc(o->bytes + 1), *next = malloc(o->bytes + 1);
    uint64_t i = 0;
    copy_parts(o, 0, got, o->bytes, false);
    content_fill(want, o->bytes, key, version);
    content_fill(next, o->bytes, key, version + 1);
    while (i < o->bytes && (got[i] == want[i] || got[i] == next[i]))
        i++;
    free(got), free(want), free(next);
    return i == o->bytes ? 0
                         : tarn_fail(TARN_E_PROTOCOL,
                                     "lease %" PRIu64 ": byte %" PRIu64 " is not of version %" PRIu64
                                     " of %s, which was written",
                                     o->id, i, version, key);
}

/* --- leases ------------------------------------------------------------------------------------- */

/* The lowest place with that much room. */
static int find_room(uint64_t room, uint64_t *at_p)
{
    uint64_t at = 0;
    for (struct object *o = lender.objects; o;) {
        bool overlaps = o->at < at + room && at < o->at + o->room;
        at = overlaps ? o->at + o->room : at;
        o = overlaps ? lender.objects : o->next;
    }
    *at_p = at;
    return at + room <= LENDER_ROOM ? 0 : tarn_fail(TARN_E_FULL, "the window has no %" PRIu64 " bytes", room);
}

/* Cuts the bytes into runs of random sizes, with gaps; some are strided. Offsets count from 0. */
static void cut(struct object *o, struct tarn_run *runs, uint32_t n)
{
    uint64_t seed = o->id, at = 0, left = o->bytes ? o->bytes : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = 1 + random_below(&seed, 2 * (left / (n - i)));
        if (i == n - 1 || bytes > left - (n - i - 1))
            bytes = left - (n - i - 1);
        uint64_t halves = bytes % 2 == 0 && i % 3 == 0 ? 2 : 1, gap = 1 + random_below(&seed, GAP);
        runs[i] = (struct tarn_run){at, bytes / halves, bytes / halves + gap, halves};
        for (uint64_t k = 0; k < halves; k++)
            o->parts[o->nparts++] = (struct part){at + k * runs[i].stride, bytes / halves};
        at += halves * runs[i].stride;
        left -= bytes;
    }
    o->room = at;
}

/* Every other object has its last run first in memory. */
static void turn(struct object *o, struct tarn_run *runs, uint32_t n)
{
    uint64_t end = o->room;
    for (uint32_t i = 0, p = 0; i < n && o->id % 2; i++) {
        end -= runs[i].count * runs[i].stride;
        runs[i].offset = end;
        for (uint64_t k = 0; k < runs[i].count; k++)
            o->parts[p++].offset = end + k * runs[i].stride;
    }
}

static int place(struct object *o, struct tarn_run *runs, uint32_t n)
{
    cut(o, runs, n);
    turn(o, runs, n);
    int rc = find_room(o->room, &o->at);
    for (uint32_t i = 0; i < n; i++)
        runs[i].offset += o->at;
    for (uint32_t i = 0; i < o->nparts; i++)
        o->parts[i].offset += o->at;
    return rc ? rc : check_idle(o->at, o->room, NULL);
}

static void free_object(struct object *o)
{
    free(o->parts);
    free(o);
}

static struct object *by_id(uint64_t id)
{
    struct object *o = lender.objects;
    while (o && o->id != id)
        o = o->next;
    return o;
}

static struct object *by_key(const char *key)
{
    struct object *o = lender.objects;
    while (o && strcmp(o->key, key) != 0)
        o = o->next;
    return o;
}

static int not_there(void)
{
    return tarn_fail(TARN_E_NOT_FOUND, "the lender has no such lease");
}

static int end(struct object *o)
{
    int rc = o->lease ? tarn_recall(o->lease, 0) : 0;
    if (!rc)
        o->lease = NULL;
    return rc;
}

static int recall(struct object *o)
{
    struct object **link = &lender.objects;
    int rc = end(o);
    if (rc)
        return rc;
    rc = check_idle(o->at, o->room, o);
    set_idle(o);
    while (*link != o)
        link = &(*link)->next;
    *link = o->next;
    free_object(o);
    return rc;
}

/* --- commands ----------------------------------------------------------------------------------- */

/* Answers are written behind the status. */
typedef int command(char **words, char *rest);

static uint64_t number(const char *word)
{
    return word ? strtoull(word, NULL, 10) : 0;
}

static int command_lease(char **w, char *rest)
{
    struct tarn_lease_options how = {.size = sizeof how, .flags = strcmp(w[2], "rw") ? 0 : TARN_LEASE_WRITE};
    struct object *o = calloc(1, sizeof *o);
    o->bytes = number(w[0]);
    o->id = lender.next_id++;
    uint64_t most = o->bytes ? o->bytes : 1;
    uint32_t n = number(w[1]) ? (uint32_t)number(w[1]) : (uint32_t)(1 + o->id % FEW_RUNS);
    n = n < most ? n : (uint32_t)most;
    struct tarn_run *runs = calloc(n, sizeof *runs);
    o->parts = calloc(2 * (size_t)n, sizeof *o->parts);
    int rc = place(o, runs, n);
    if (!rc && w[3]) {
        uint8_t *data = malloc(o->bytes + 1);
        content_fill(data, o->bytes, w[3], number(w[4]));
        copy_parts(o, 0, data, o->bytes, true);
        free(data);
    }
    if (!rc)
        rc = tarn_lease(lender.window, runs, n, &how, &o->lease);
    if (!rc)
        rc = tarn_lease_descriptor(o->lease, rest + sprintf(rest, "%" PRIu64 " ", o->id));
    free(runs);
    if (rc) {
        free_object(o);
        return rc;
    }
    o->next = lender.objects;
    lender.objects = o;
    return 0;
}

static int command_name(char **w, char *rest)
{
    struct object *o = by_id(number(w[0])), *former = by_key(w[1]);
    (void)rest;
    if (!o)
        return not_there();
    snprintf(o->key, sizeof o->key, "%s", w[1]);
    return former ? recall(former) : 0;
}

static int command_look(char **w, char *rest)
{
    const struct object *o = by_key(w[0]);
    int n = o ? sprintf(rest, "%" PRIu64 " %" PRIu64 " ", o->id, o->bytes) : 0;
    return o ? tarn_lease_descriptor(o->lease, rest + n) : not_there();
}

static int command_remove(char **w, char *rest)
{
    struct object *o = by_key(w[0]);
    (void)rest;
    return o ? recall(o) : not_there();
}

static int command_recall(char **w, char *rest)
{
    struct object *o = by_id(number(w[0]));
    (void)rest;
    return o ? recall(o) : not_there();
}

static int command_holds(char **w, char *rest)
{
    const struct object *o = by_id(number(w[0]));
    (void)rest;
    return o ? holds(o, number(w[1]), number(w[2]), w[3], number(w[4])) : not_there();
}

static int command_end(char **w, char *rest)
{
    struct object *o = by_id(number(w[0]));
    (void)rest;
    return o ? end(o) : not_there();
}

static int command_shows(char **w, char *rest)
{
    const struct object *o = by_id(number(w[0]));
    (void)rest;
    return o ? shows(o, w[1], number(w[2])) : not_there();
}

static int command_enough(char **w, char *rest)
{
    (void)rest;
    lender.enough = number(w[0]);
    return 0;
}

static int take(uint64_t round, uint64_t ms, struct tarn_notification *n)
{
    uint64_t until = harness_now_ms() + ms;
    bool last = false;
    int rc;
    pthread_mutex_unlock(&lender.lock);
    while ((rc = tarn_notification_next(lender.window, SLICE_MS, n)) == TARN_E_TIMEOUT && !last) {
        pthread_mutex_lock(&lender.lock);
        last = lender.enough == round || harness_now_ms() > until;
        pthread_mutex_unlock(&lender.lock);
    }
    pthread_mutex_lock(&lender.lock);
    return rc;
}

static int command_next(char **w, char *rest)
{
    struct tarn_notification n;
    uint64_t offset, bytes;
    int rc = take(number(w[0]), number(w[1]), &n);
    if (rc)
        return rc;
    sprintf(rest, "%" PRIu64, n.tag);
    struct object *o = lender.objects;
    while (o && o->lease != n.lease)
        o = o->next;
    n.data[n.bytes < TARN_NOTIFY_MAX ? n.bytes : TARN_NOTIFY_MAX - 1] = '\0';
    if (sscanf(n.data, "%" SCNu64 " %" SCNu64, &offset, &bytes) != 2)
        return tarn_fail(TARN_E_PROTOCOL, "a notification without its range");
    return o ? holds(o, offset, bytes, "told", n.tag) : not_there();
}

static int command_reset(char **w, char *rest)
{
    struct tarn_notification n;
    int rc = 0;
    (void)w, (void)rest;
    lender.enough = UINT64_MAX;
    while (!rc && lender.objects)
        rc = recall(lender.objects);
    while (!rc && tarn_notification_next(lender.window, 1, &n) == 0)
        ;
    return rc ? rc : check_idle(0, LENDER_ROOM, NULL);
}

static const struct {
    const char *name;
    command *fn;
    int words; /* at least */
} commands[] = {
    {"LEASE", command_lease, 3},   {"NAME", command_name, 2},     {"LOOK", command_look, 1},
    {"REMOVE", command_remove, 1}, {"RECALL", command_recall, 1}, {"HOLDS", command_holds, 5},
    {"END", command_end, 1},       {"SHOWS", command_shows, 3},   {"NEXT", command_next, 2},
    {"ENOUGH", command_enough, 1}, {"RESET", command_reset, 0},
};

static int obey(char *text, char *rest)
{
    char *words[8] = {NULL}, *save = NULL;
    int n = 0, rc = tarn_fail(TARN_E_INVALID, "no command of the lender");
    for (char *word = strtok_r(text, " ", &save); word && n < 7; word = strtok_r(NULL, " ", &save))
        words[n++] = word;
    pthread_mutex_lock(&lender.lock);
    for (size_t i = 0; n && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(words[0], commands[i].name) && n > commands[i].words)
            rc = commands[i].fn(words + 1, rest);
    pthread_mutex_unlock(&lender.lock);
    if (rc)
        snprintf(rest, LENDER_TEXT - 16, "%.900s", tarn_last_error());
    return rc;
}

/* --- connections -------------------------------------------------------------------------------- */

static void *answer(void *arg)
{
    char text[LENDER_TEXT], rest[LENDER_TEXT] = "", out[LENDER_TEXT];
    int fd = (int)(intptr_t)arg;
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    tarn_tcp_received(); /* the bytes that a client asks about came before */
    if (n > 0) {
        text[n] = '\0';
        int rc = obey(text, rest);
        n = snprintf(out, sizeof out, "%d %.1000s", rc, rest);
        send(fd, out, (size_t)n, MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    return a;
}

static void lend(const char *redis, bool gpu)
{
    lender.client = client_open(redis, (struct tarn_options){.timeout_ms = 0});
    if (gpu) {
        lender.device = device_open(0);
        lender.base = device_alloc(lender.device, LENDER_ROOM);
    } else {
        assert_int_equal(tarn_window_alloc(LENDER_ROOM, 0, (void **)&lender.base), 0);
    }
    device_set(lender.device, lender.base, IDLE, LENDER_ROOM);
    if (tarn_window_new(lender.client, lender.base, LENDER_ROOM, &lender.window))
        fail_msg("window: %s", tarn_last_error());
}

int lender_main(const char *path, const char *redis, bool gpu)
{
    const struct sockaddr_un a = address_of(path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    lend(redis, gpu);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 64) < 0) {
        fprintf(stderr, "%s: %m\n", path);
        return 1;
    }
    dprintf(STDOUT_FILENO, "ready\n");
    for (int one; (one = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        pthread_t id;
        if (pthread_create(&id, NULL, answer, (void *)(intptr_t)one))
            return 1;
        pthread_detach(id);
    }
    fprintf(stderr, "%s: %m\n", path);
    return 1;
}

/* --- the other side ----------------------------------------------------------------------------- */

int lender_ask(const char *path, char rest[LENDER_TEXT], const char *fmt, ...)
{
    const struct sockaddr_un a = address_of(path);
    char text[LENDER_TEXT];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc, at = 0;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ssize_t got = -1;
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof a) == 0 &&
        send(fd, text, (size_t)n, MSG_NOSIGNAL) == n)
        got = recv(fd, text, sizeof text - 1, 0);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return tarn_fail(TARN_E_SYSTEM, "the lender does not answer at %s: %m", path);
    text[got] = '\0';
    if (sscanf(text, "%d %n", &rc, &at) != 1)
        return tarn_fail(TARN_E_SYSTEM, "the lender says \"%s\"", text);
    if (rest)
        snprintf(rest, LENDER_TEXT, "%s", text + at);
    return rc ? tarn_fail(rc, "lender: %s", text + at) : 0;
}
