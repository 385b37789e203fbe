/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>

#include "base/clock.h"
#include "tests/tcpx/scene.h"

static struct {
    pthread_mutex_t lock;
    char text[65536];
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void hear(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&heard.lock);
    size_t at = strlen(heard.text);
    snprintf(heard.text + at, sizeof(heard.text) - at, "%s\n", line);
    pthread_mutex_unlock(&heard.lock);
}

static const struct tarn_logger logger = {.level = TARN_LOG_DEBUG, .fn = hear};

bool scene_was_said(const char *what)
{
    pthread_mutex_lock(&heard.lock);
    bool said = strstr(heard.text, what);
    pthread_mutex_unlock(&heard.lock);
    return said;
}

void scene_setenv(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static int play_in_child(void *arg)
{
    const struct scene *s = arg;
    struct tarn_tcpx_plugin *p;
    scene_setenv("TCPX_FIXTURE", s->options);
    scene_setenv("TCPX_FIXTURE_COUNTERS", s->counters);
    scene_setenv("NCCL_DYNAMIC_CHUNK_SIZE", s->chunk);
    setenv("NCCL_SOCKET_NTHREADS", "1", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", s->sockets ? s->sockets : "1", 1);
    /* The fixture then gets this library, because it is loaded under the driver's name. */
    if (s->options && strstr(s->options, "gpu=1"))
        CHECK(dlopen(child_driver(), RTLD_NOW | RTLD_LOCAL));
    CHECK(tarn_tcpx_plugin_open(child_plugin(s->plugin), &logger, &p) == 0);
    return s->body(p);
}

void scene_play(const struct scene *s)
{
    char out[16384];
    int status = child_run(play_in_child, (void *)s, 3600, out, sizeof(out));
    if (s->ends ? status == 0 || status == CHILD_FAILED || !strstr(out, s->ends) : status != 0)
        fail_msg("%s, options %s: status %d, awaited \"%s\": %s", s->plugin, s->options ? s->options : "",
                 status, s->ends ? s->ends : "", out);
    if (strncmp(out, "random", 6) == 0)
        print_message("%s", out);
}

struct fixture_counters *scene_counters(const struct tarn_tcpx_plugin *p)
{
    void *handle = dlopen(p->path, RTLD_LAZY | RTLD_NOLOAD);
    CHECK(handle);
    fixture_counters_fn fn = (fixture_counters_fn)dlsym(handle, FIXTURE_COUNTERS_SYMBOL);
    CHECK(fn);
    return fn();
}

/* --- a connection with memory ------------------------------------------------------------------- */

static _Alignas(WORLD_PAGE) uint8_t source[WORLD_SOURCE], target[WORLD_SOURCE], dummy[WORLD_PAGE];

struct world world_new(struct tarn_tcpx_plugin *p)
{
    struct world w = {.p = p, .source = source, .target = target, .dummy = dummy};
    int type = p->devices[0].mode == TARN_TCPX_UNPACK ? TARN_TCPX_CUDA : TARN_TCPX_HOST;
    CHECK(bare_open(p, 0, &w.b) == 0);
    for (size_t i = 0; i < WORLD_SOURCE; i++)
        source[i] = (uint8_t)(i * 31 + (i >> 8) * 7);
    memset(target, 0, WORLD_SOURCE);
    CHECK(tarn_tcpx_reg(p, w.b.send, source, WORLD_SOURCE, type, &w.source_mr) == 0);
    CHECK(tarn_tcpx_reg(p, w.b.recv, target, WORLD_SOURCE, TARN_TCPX_HOST, &w.target_mr) == 0);
    CHECK(tarn_tcpx_reg(p, w.b.recv, dummy, WORLD_PAGE, type, &w.dummy_mr) == 0);
    return w;
}

void world_end(struct world *w)
{
    CHECK(tarn_tcpx_dereg(w->p, w->b.send, w->source_mr) == 0);
    CHECK(tarn_tcpx_dereg(w->p, w->b.recv, w->target_mr) == 0);
    CHECK(tarn_tcpx_dereg(w->p, w->b.recv, w->dummy_mr) == 0);
    bare_close(&w->b);
}

void *world_send(struct world *w, uint64_t off, uint32_t bytes)
{
    void *r;
    CHECK(tarn_tcpx_isend(w->p, w->b.send, source + off, bytes, w->source_mr, &r) == 0);
    CHECK(r);
    return r;
}

void *world_recv(struct world *w)
{
    void *r;
    CHECK(tarn_tcpx_irecv(w->p, w->b.recv, dummy, 1, w->dummy_mr, &r) == 0);
    CHECK(r);
    return r;
}

void world_pass(struct world *w, void *send, void *recv)
{
    uint64_t end = tarn_deadline(SCENE_LATE_MS);
    bool sent = false, received = false;
    while (!sent || !received) {
        CHECK(tarn_now_ns() < end);
        if (!sent)
            sent = tarn_tcpx_test(w->p, send) == 0;
        if (!received)
            received = tarn_tcpx_test(w->p, recv) == 0;
    }
}

void world_check(struct world *w, uint64_t k, uint64_t off, uint64_t bytes)
{
    memset(target, 0, WORLD_SOURCE);
    CHECK(bare_place(&w->b, k, target, bytes) == bytes);
    CHECK(memcmp(target, source + off, bytes) == 0);
}
