/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rdma.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLACK_MS 2500 /* tolerance for an emulated machine, beyond the deadline */

/* --- devices ------------------------------------------------------------------------------------ */

struct why {
    bool usable;
    char text[256];
};

static int look_for_rdma(void *arg, const char *name, const char *why)
{
    struct why *w = arg;
    if (strcmp(name, "rdma") != 0)
        return 0;
    w->usable = !why;
    snprintf(w->text, sizeof(w->text), "%s", why ? why : "");
    return 0;
}

void rdma_need(bool wire)
{
    struct why w = {.text = "this build has no such transport"};
    const char *wired = getenv("WIRE"), *rails = getenv("RAILS");
    tarn_transports(look_for_rdma, &w);
    if (!w.usable)
        harness_skip("rdma", w.text);
    if (wire && !(wired && *wired))
        harness_skip("rdma", "no wire with two ends: tests/rdma-vm/vm.sh --wire");
    if (wire)
        setenv("TARN_RDMA_DEVICES", rails && *rails == '2' ? "rxe0,rxe1" : "rxe0", 1);
}

enum { PULLED = 1, SLOWED = 2 };
static unsigned hurt[2]; /* bits of each rail */

/* Records what rails_mend() must restore at the end of a test. */
static void note(const char *what, int number)
{
    if (strcmp(what, "pull") == 0)
        hurt[number] |= PULLED;
    else if (strcmp(what, "plug") == 0)
        hurt[number] &= ~(unsigned)PULLED;
    else if (strcmp(what, "free") == 0)
        hurt[number] &= ~(unsigned)SLOWED;
    else
        hurt[number] |= SLOWED;
}

void rails_mend(struct harness *h)
{
    for (int i = 0; i < 2; i++) {
        if (hurt[i] & PULLED)
            rail(h, "plug", i, NULL);
        if (hurt[i] & SLOWED)
            rail(h, "free", i, NULL);
    }
}

void rail(struct harness *h, const char *what, int number, const char *value)
{
    char n[2] = {(char)('0' + number), '\0'};
    const char *far = strcmp(what, "limit") == 0 ? "far" : NULL;
    if (!value) /* NULL ends the arguments */
        far = NULL;
    int status = harness_run(h, NULL, "sh", "tests/rdma-vm/rail.sh", what, n, value, far, NULL);
    note(what, number);
    if (status)
        fail_msg("rail.sh %s %s %s: exit status %d", what, n, value ? value : "", status);
}

static unsigned long long read_number(const char *path)
{
    unsigned long long v = 0;
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%llu", &v) != 1)
        fail_msg("%s: cannot be read", path);
    fclose(f);
    return v;
}

unsigned long long rail_bytes(int number)
{
    char path[2][80];
    snprintf(path[0], sizeof(path[0]), "/sys/class/net/rail%d/statistics/tx_bytes", number);
    snprintf(path[1], sizeof(path[1]), "/sys/class/net/rail%d/statistics/rx_bytes", number);
    return read_number(path[0]) + read_number(path[1]);
}

static int number_after(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    return at ? atoi(at + strlen(name)) : 0;
}

struct rdma_objects rdma_objects(void)
{
    struct rdma_objects o = {0};
    char line[256];
    FILE *f = popen("PATH=$PATH:/usr/sbin:/sbin rdma resource show", "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        o.pd += number_after(line, " pd ");
        o.cq += number_after(line, " cq ");
        o.qp += number_after(line, " qp ");
        o.mr += number_after(line, " mr ");
        o.ctx += number_after(line, " ctx ");
    }
    if (pclose(f) || o.qp == 0)
        fail_msg("rdma resource show says nothing");
    return o;
}

bool rdma_objects_same(const struct rdma_objects *a, const struct rdma_objects *b)
{
    return a->qp == b->qp && a->cq == b->cq && a->mr == b->mr && a->pd == b->pd && a->ctx == b->ctx;
}

int process_files(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

long process_rss(pid_t pid)
{
    char path[64], line[128];
    long kib = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1)
            break;
    fclose(f);
    return kib;
}

/* --- bytes that show their key and version ------------------------------------------------------ */

static uint64_t marked_word(uint64_t id, size_t i)
{
    return i == 0 ? id : (id + i) * 0x9e3779b97f4a7c15u;
}

void marked_fill(void *p, size_t bytes, uint32_t key, uint32_t version)
{
    uint64_t id = (uint64_t)key << 32 | version;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t w = marked_word(id, at / 8);
        memcpy((char *)p + at, &w, bytes - at < 8 ? bytes - at : 8);
    }
}

int64_t marked_version(const void *p, size_t bytes, uint32_t key)
{
    uint64_t id = (uint64_t)key << 32, got;
    memcpy(&id, p, bytes < sizeof(id) ? bytes : sizeof(id));
    if (id >> 32 != key)
        return -1;
    for (size_t at = 8; at < bytes; at += 8) {
        size_t n = bytes - at < 8 ? bytes - at : 8;
        uint64_t want = marked_word(id, at / 8);
        memcpy(&got, (const char *)p + at, n);
        if (n == 8 ? got != want : memcmp(&got, &want, n) != 0)
            return -1;
    }
    return (uint32_t)id;
}

struct marked {
    char name[32];
    struct tarn_piece piece;
    struct tarn_item item;
};

static void marked_item(struct marked *m, const char *prefix, uint32_t key, void *data, size_t bytes)
{
    snprintf(m->name, sizeof(m->name), "%s%u", prefix, key);
    m->piece = (struct tarn_piece){.addr = data, .bytes = bytes};
    m->item = (struct tarn_item){
        .key = key_of(m->name), .pieces = &m->piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
}

int marked_put(struct tarn_client *c, const char *prefix, uint32_t key, uint32_t version, size_t bytes)
{
    struct marked m;
    char *data = malloc(bytes + 1);
    assert_non_null(data);
    marked_fill(data, bytes, key, version);
    marked_item(&m, prefix, key, data, bytes);
    int status = tarn_put(c, &m.item, 1, &replacing);
    free(data);
    return status;
}

int marked_get(struct tarn_client *c, const char *prefix, uint32_t key, size_t bytes, int64_t *version_p)
{
    struct marked m;
    char *data = calloc(1, bytes + 1);
    assert_non_null(data);
    marked_item(&m, prefix, key, data, bytes);
    int status = tarn_get(c, &m.item, 1, NULL);
    int64_t version = status == 0 ? marked_version(data, bytes, key) : 0;
    if (version < 0)
        fail_msg("%s: wrong bytes", m.name);
    if (version_p)
        *version_p = version;
    free(data);
    return status;
}

/* --- traffic ------------------------------------------------------------------------------------ */

static bool is_allowed(const struct traffic *t, int status)
{
    enum tarn_error_class class = tarn_error_class(status);
    if (status == 0 || (t->evicted && status == TARN_E_NOT_FOUND))
        return true;
    return !t->clean &&
           (class == TARN_CLASS_RETRY || class == TARN_CLASS_RECONNECT || class == TARN_CLASS_RELOCATE);
}

/* Runs one operation and returns its status unchanged. */
static int operate(struct traffic *t, uint32_t key, uint32_t version, char *data)
{
    struct marked m;
    marked_item(&m, t->prefix, key, data, t->bytes);
    if (t->puts) {
        struct tarn_put_options o = {
            .size = sizeof(o), .flags = TARN_PUT_REPLACE, .timeout_ms = t->timeout_ms};
        marked_fill(data, t->bytes, key, version);
        return tarn_put(t->client, &m.item, 1, &o);
    }
    struct tarn_get_options o = {.size = sizeof(o), .timeout_ms = t->timeout_ms};
    return tarn_get(t->client, &m.item, 1, &o);
}

static void judge(struct traffic *t, int status, uint64_t took, uint32_t key, uint32_t acked,
                  const char *data)
{
    if (t->wrong[0])
        return;
    if (!is_allowed(t, status))
        snprintf(t->wrong, sizeof(t->wrong), "%s: %s", tarn_error_name(status), tarn_last_error());
    if (took > t->timeout_ms + SLACK_MS)
        snprintf(t->wrong, sizeof(t->wrong), "took %llu ms of %u: %s: %s", (unsigned long long)took,
                 t->timeout_ms, tarn_error_name(status), tarn_last_error());
    if (status || t->puts)
        return;
    int64_t version = marked_version(data, t->bytes, key);
    if (version < 0)
        snprintf(t->wrong, sizeof(t->wrong), "key %u: wrong bytes", key);
    else if (version < acked)
        snprintf(t->wrong, sizeof(t->wrong), "key %u: version %lld although %u had been put", key,
                 (long long)version, acked);
}

static void *traffic_run(void *arg)
{
    struct traffic *t = arg;
    char *data = calloc(1, t->bytes + 8);
    for (uint32_t i = 0; data && !atomic_load(&t->stop); i++) {
        uint32_t key = i % t->objects, version = 2 + i / t->objects;
        uint32_t acked = t->acked ? atomic_load(&t->acked[key]) : 0;
        uint64_t begun = harness_now_ms();
        int status = operate(t, key, version, data);
        uint64_t took = harness_now_ms() - begun;
        judge(t, status, took, key, acked, data);
        if (took > t->longest_ms)
            t->longest_ms = took;
        if (status)
            t->last_failure = status;
        else if (t->puts && t->acked)
            atomic_store(&t->acked[key], version);
        atomic_fetch_add(&t->ended, 1);
        atomic_fetch_add(&t->good, status == 0);
    }
    free(data);
    return NULL;
}

static struct traffic *running[16];

static void traffic_end(struct traffic **slot)
{
    struct traffic *t = *slot;
    *slot = NULL;
    atomic_store(&t->stop, true);
    pthread_join(t->thread, NULL);
}

void traffic_start(struct traffic *t)
{
    size_t i = 0;
    while (running[i])
        assert_true(++i < sizeof(running) / sizeof(running[0]));
    assert_int_equal(pthread_create(&t->thread, NULL, traffic_run, t), 0);
    running[i] = t;
}

static void print_file(const char *tid, const char *name)
{
    char path[64], text[2048];
    snprintf(path, sizeof(path), "/proc/self/task/%.16s/%s", tid, name);
    FILE *f = fopen(path, "re");
    size_t bytes = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    text[bytes] = 0;
    print_error("thread %s %s: %s\n", tid, name, text);
    if (f)
        fclose(f);
}

/* Prints where every thread is, to find one that hangs. */
static void print_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            print_file(e->d_name, "syscall");
            print_file(e->d_name, "stack");
        }
    if (d)
        closedir(d);
}

void traffic_more(struct traffic *t, unsigned n, bool good, unsigned ms)
{
    atomic_uint *counter = good ? &t->good : &t->ended;
    unsigned from = atomic_load(counter);
    for (uint64_t until = harness_now_ms() + ms; atomic_load(counter) - from < n; harness_pause())
        if (harness_now_ms() > until || t->wrong[0]) {
            print_threads();
            fail_msg("%u of %u %s within %u ms; the last failure: %s; %s", atomic_load(counter) - from, n,
                     t->puts ? "puts" : "gets", ms, tarn_error_name(t->last_failure), t->wrong);
        }
}

void traffic_stop(struct traffic *t)
{
    for (size_t i = 0; i < sizeof(running) / sizeof(running[0]); i++)
        if (running[i] == t)
            traffic_end(&running[i]);
    if (t->wrong[0])
        fail_msg("%s: %s", t->puts ? "put" : "get", t->wrong);
}

void traffic_stop_all(void)
{
    for (size_t i = 0; i < sizeof(running) / sizeof(running[0]); i++)
        if (running[i])
            traffic_end(&running[i]);
}

int rdma_stop(void **state)
{
    struct world *w = *state;
    traffic_stop_all();
    rails_mend(w->h);
    return world_stop(state);
}
