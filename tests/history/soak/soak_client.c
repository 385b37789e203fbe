/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the soak. It runs until a command stops it or a signal kills it. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tarn/tarn.h>

#include "base/clock.h"
#include "tests/device.h"
#include "tests/history/soak/soak.h"
#include "tests/history/value.h"
#include "tests/router.h"
#include "tests/stall.h"

enum { HOT_KEYS = 6, RETRY_MS = 50, VIEW_MS = 30, OPEN_AGAIN = 1000 };

struct soak_control *soak_control_map(const char *log_dir)
{
    char path[512];
    struct soak_control *c;
    snprintf(path, sizeof path, "%s/control", log_dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *c))
        return NULL;
    c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return c == MAP_FAILED ? NULL : c;
}

void soak_log_path(char *out, size_t bytes, const char *log_dir, uint32_t client)
{
    snprintf(out, bytes, "%s/log-%u", log_dir, client);
}

size_t soak_log_room(uint32_t seconds)
{
    return 100000 + (size_t)seconds * 4000;
}

size_t soak_value_bytes(uint32_t key)
{
    static const size_t sizes[] = {64, 1000, 4096, 20000, 65536 + 17, SOAK_VALUE_MAX};
    return sizes[key % (sizeof sizes / sizeof *sizes)];
}

/* --- single operations -------------------------------------------------------------------------- */

struct name {
    char text[16];
    struct tarn_key key;
};

static void name_key(struct name *n, uint32_t key)
{
    snprintf(n->text, sizeof n->text, "soak-%u", key);
    n->key = (struct tarn_key){n->text, strlen(n->text)};
}

/* How long the thread was ready but did not run: /proc/thread-self/schedstat. */
static uint64_t waited_ns(void)
{
    static int fd = -1;
    char text[96] = "";
    unsigned long long ran = 0, waited = 0;
    if (fd < 0)
        fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%llu %llu", &ran, &waited) != 2)
        return 0;
    return waited;
}

/* Logs the first error text of each status. */
static int said(const char *what, int status)
{
    static bool seen[64];
    if (status < 0 && status > -64 && !seen[-status]) {
        seen[-status] = true;
        fprintf(stderr, "%s: %s: %s\n", what, tarn_error_name(status), tarn_last_error());
    }
    return status;
}

/* Values are made and checked here, and copied from and to the memory of puts and gets. */
static uint8_t bench[SOAK_VALUE_MAX];

static void fill(const struct soak_room *room, size_t bytes, uint32_t key, uint64_t version)
{
    value_fill(bench, bytes, key, version);
    device_write(room->device, room->addr, bench, bytes);
}

static uint32_t choose_key(void)
{
    return (uint32_t)(rand() % 2 ? rand() % HOT_KEYS : rand() % SOAK_KEYS);
}

/* Half of the puts of one copy name their node: small objects then go by STORE (client/put_job.h). */
static const char *choose_place(uint32_t copies, char place[16])
{
    if (copies > 1 || rand() % 2)
        return NULL;
    snprintf(place, 16, "node%d", rand() % SOAK_NODES);
    return place;
}

/* Half of the puts are chains, which continue any object, also one that is not there. */
static void choose_chain(struct tarn_put_options *o, const struct name *before)
{
    if (rand() % 2 == 0)
        return;
    o->flags |= TARN_PUT_CHAIN;
    o->continues = rand() % 4 ? &before->key : NULL;
}

int soak_put(struct history_log *l, struct tarn_client *c, uint32_t key, enum history_kind kind,
             uint32_t copies, uint32_t deadline_ms)
{
    struct name n, before;
    size_t bytes = soak_value_bytes(key);
    struct soak_room room = soak_room(0);
    struct tarn_piece piece = {.addr = room.addr, .bytes = bytes};
    char place[16];
    struct tarn_put_options o = {.size = sizeof o,
                                 .timeout_ms = deadline_ms,
                                 .place = choose_place(copies, place),
                                 .flags = kind == HISTORY_REPLACE ? TARN_PUT_REPLACE : 0,
                                 .replicas = copies};
    name_key(&n, key);
    name_key(&before, choose_key());
    choose_chain(&o, &before);
    struct tarn_item item = {.key = n.key, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    struct history_op *op = history_begin(l, kind, key, deadline_ms);
    if (!op)
        return TARN_E_CANCELED;
    fill(&room, bytes, key, op->version);
    op->start_ns = tarn_now_ns();
    uint64_t waited = waited_ns();
    int status = said("put", tarn_put(c, &item, 1, &o));
    op->waited_ns = waited_ns() - waited;
    history_end(op, status);
    return status;
}

/* A put of n keys, enough for several chunks (client/put_plan.h). Its values are in host memory. */
static void put_many(struct history_log *l, struct tarn_client *c, uint32_t n, uint32_t copies,
                     uint32_t deadline_ms)
{
    struct name names[SOAK_KEYS], before;
    struct tarn_piece pieces[SOAK_KEYS];
    struct tarn_item items[SOAK_KEYS];
    struct history_op *ops[SOAK_KEYS];
    static uint8_t values[SOAK_KEYS][SOAK_VALUE_MAX];
    uint32_t first = choose_key();
    enum history_kind kind = rand() % 4 ? HISTORY_REPLACE : HISTORY_PUT;
    struct tarn_put_options o = {.size = sizeof o,
                                 .timeout_ms = deadline_ms,
                                 .flags = kind == HISTORY_REPLACE ? TARN_PUT_REPLACE : 0,
                                 .replicas = copies};
    name_key(&before, choose_key());
    choose_chain(&o, &before);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = (first + i) % SOAK_KEYS;
        size_t bytes = soak_value_bytes(key);
        name_key(&names[i], key);
        pieces[i] = (struct tarn_piece){.addr = values[i], .bytes = bytes};
        items[i] = (struct tarn_item){
            .key = names[i].key, .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(bytes)};
        ops[i] = history_begin(l, kind, key, deadline_ms);
        if (!ops[i])
            return;
        value_fill(values[i], bytes, key, ops[i]->version);
    }
    uint64_t begun = tarn_now_ns(), waited = waited_ns();
    for (uint32_t i = 0; i < n; i++)
        ops[i]->start_ns = begun;
    said("put of many", tarn_put(c, items, n, &o));
    waited = waited_ns() - waited;
    for (uint32_t i = 0; i < n; i++) {
        ops[i]->waited_ns = waited;
        history_end(ops[i], items[i].status);
    }
}

int soak_remove(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t deadline_ms)
{
    struct name n;
    int32_t status;
    name_key(&n, key);
    struct history_op *op = history_begin(l, HISTORY_REMOVE, key, deadline_ms);
    if (!op)
        return TARN_E_CANCELED;
    uint64_t waited = waited_ns();
    said("remove", tarn_remove(c, &n.key, 1, &status, deadline_ms));
    op->waited_ns = waited_ns() - waited;
    history_end(op, status);
    return status;
}

static void look(struct history_op *op, const struct soak_room *room, size_t bytes)
{
    size_t at;
    device_read(room->device, bench, room->addr, bytes);
    op->wrong = (uint8_t)value_inspect(bench, bytes, op->key, &op->version, &at);
    if (op->wrong)
        fprintf(stderr, "client %u key %u version %llx: wrong (%d) from byte %zu of %zu on\n", op->client,
                op->key, (unsigned long long)op->version, op->wrong, at, bytes);
}

/* Completes the record after the check of the bytes, with the time at which the call ended. */
static void end_get(struct history_op *op, uint64_t ended_ns, uint64_t waited, int status)
{
    op->waited_ns = waited;
    op->status = status;
    atomic_store_explicit(&op->end_ns, ended_ns, memory_order_release);
}

int soak_get(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t n, uint32_t deadline_ms)
{
    struct name names[SOAK_ROOMS];
    struct soak_room rooms[SOAK_ROOMS];
    struct tarn_piece pieces[SOAK_ROOMS];
    struct tarn_item items[SOAK_ROOMS];
    struct history_op *ops[SOAK_ROOMS];
    struct tarn_get_options o = {.size = sizeof o, .timeout_ms = deadline_ms};
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = soak_value_bytes((key + i) % SOAK_KEYS);
        name_key(&names[i], (key + i) % SOAK_KEYS);
        rooms[i] = soak_room(i);
        pieces[i] = (struct tarn_piece){.addr = rooms[i].addr, .bytes = bytes};
        items[i] = (struct tarn_item){.key = names[i].key, .pieces = &pieces[i], .npieces = 1};
        device_set(rooms[i].device, rooms[i].addr, 0xa5, bytes);
        ops[i] = history_begin(l, n > 1 ? HISTORY_GET_MANY : HISTORY_GET, (key + i) % SOAK_KEYS, deadline_ms);
        if (!ops[i])
            return TARN_E_CANCELED;
    }
    uint64_t begun = tarn_now_ns(), waited = waited_ns();
    for (uint32_t i = 0; i < n; i++)
        ops[i]->start_ns = begun;
    int status = said("get", tarn_get(c, items, n, &o));
    uint64_t ended = tarn_now_ns();
    waited = waited_ns() - waited;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].status == 0)
            look(ops[i], &rooms[i], pieces[i].bytes);
        end_get(ops[i], ended, waited, items[i].status);
    }
    return status;
}

/* Holds a view for a while. The bytes must not change. */
static void view(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t deadline_ms)
{
    struct name n;
    struct tarn_view v;
    name_key(&n, key);
    struct history_op *op = history_begin(l, HISTORY_GET, key, deadline_ms);
    if (!op)
        return;
    uint64_t waited = waited_ns();
    int status = tarn_view(c, &n.key, deadline_ms, &v);
    uint64_t ended = tarn_now_ns();
    waited = waited_ns() - waited;
    if (status == 0) {
        struct soak_room room = {soak_gpu(v.device), (void *)v.addr};
        look(op, &room, v.tensor.bytes);
        poll(NULL, 0, rand() % VIEW_MS);
        if (!op->wrong)
            look(op, &room, v.tensor.bytes);
        tarn_release(c, &v);
    }
    end_get(op, ended, waited, status);
}

/* --- a client's life ---------------------------------------------------------------------------- */

struct life {
    uint32_t number, copies;
    bool writes, views;
    const char *redis, *transport;
    struct history_log *log;
    struct soak_control *control;
    struct tarn_client *client;
};

static uint32_t choose_deadline(void)
{
    int at = rand() % 10;
    return at < 1 ? 300 : at < 6 ? 2000 : 5000;
}

static void read_something(struct life *l)
{
    int at = rand() % 100;
    if (at < 15)
        soak_get(l->log, l->client, choose_key(), 2 + (uint32_t)rand() % (SOAK_ROOMS - 1), choose_deadline());
    else if (at < 25 && l->views)
        view(l->log, l->client, choose_key(), choose_deadline());
    else
        soak_get(l->log, l->client, choose_key(), 1, choose_deadline());
}

static void write_something(struct life *l)
{
    int at = rand() % 100;
    if (at < 2)
        put_many(l->log, l->client, SOAK_KEYS - (uint32_t)rand() % 16, l->copies, choose_deadline());
    else if (at < 45)
        soak_put(l->log, l->client, choose_key(), HISTORY_REPLACE, l->copies, choose_deadline());
    else if (at < 60)
        soak_put(l->log, l->client, choose_key(), HISTORY_PUT, l->copies, choose_deadline());
    else if (at < 75)
        soak_remove(l->log, l->client, choose_key(), choose_deadline());
    else
        read_something(l);
}

static void note_stall(void *arg, uint64_t from_ns, uint64_t to_ns)
{
    struct life *l = arg;
    history_note(l->log, HISTORY_STALL, (uint16_t)l->number, from_ns, to_ns);
}

/* Opens the client unless it is open. */
static bool is_open(struct life *l)
{
    struct tarn_options o = {.size = sizeof o, .redis = l->redis, .transports = l->transport};
    while (!l->client && !atomic_load(&l->control->stops))
        if (tarn_open(&o, &l->client))
            poll(NULL, 0, RETRY_MS);
    return l->client != NULL;
}

static void live(struct life *l)
{
    while (!atomic_load(&l->control->stops) && is_open(l)) {
        if (l->writes)
            write_something(l);
        else
            read_something(l);
        poll(NULL, 0, rand() % (l->writes ? 6 : 3));
        if (rand() % OPEN_AGAIN == 0) {
            tarn_close(l->client);
            l->client = NULL;
        }
    }
}

static void add_routes(char *const *routes, const char *transport)
{
    char from[64];
    router_no_unix(!soak_is_local(transport));
    for (; *routes; routes++) {
        const char *equals = strchr(*routes, '=');
        snprintf(from, sizeof from, "%.*s", (int)(equals - *routes), *routes);
        router_route(from, equals + 1);
    }
}

int soak_client(int argc, char **argv)
{
    struct life l = {0};
    char path[512];
    if (argc < 7)
        return 2;
    const char *log_dir = argv[1];
    l.redis = argv[3];
    l.transport = argv[4];
    l.number = (uint32_t)strtoul(argv[2], NULL, 10);
    l.copies = (uint32_t)strtoul(argv[5], NULL, 10);
    l.writes = l.number < SOAK_WRITERS;
    l.views = soak_is_local(l.transport);
    soak_log_path(path, sizeof path, log_dir, l.number);
    l.log = history_open(path, (uint16_t)l.number, soak_log_room((uint32_t)strtoul(argv[6], NULL, 10)));
    l.control = soak_control_map(log_dir);
    if (!l.log || !l.control)
        return 3;
    add_routes(argv + 7, l.transport);
    soak_rooms_open(soak_is_gpu(l.transport) ? (int)l.number % soak_gpus() : -1);
    srand((unsigned)tarn_now_ns());
    struct stalls *s = stalls_start(note_stall, &l);
    live(&l);
    tarn_close(l.client);
    stalls_stop(s);
    history_close(l.log);
    return 0;
}
