/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/proxy_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};
static const struct world_plan two_plan = {.nodes = 2, .args = {"--pool", "cpu0:bytes=16M"}};

/* --- begin and end ------------------------------------------------------------------------------ */

static int start_with(void **state, const struct world_plan *p)
{
    void *w;
    *state = NULL;
    if (!devices_there())
        return 0;
    struct scene *s = calloc(1, sizeof(*s));
    assert_int_equal(world_start(&w, p), 0);
    s->w = w;
    s->device = device_open(0);
    s->host = malloc(ROOM);
    s->seen = malloc(ROOM);
    s->gpu = device_alloc(s->device, ROOM);
    s->seed = (unsigned)harness_now_ms();
    print_message("seed %u\n", s->seed);
    *state = s;
    return 0;
}

int scene_start(void **state)
{
    return start_with(state, &plan);
}

int scene_start_two(void **state)
{
    return start_with(state, &two_plan);
}

int scene_stop(void **state)
{
    struct scene *s = *state;
    if (!s)
        return 0;
    tarn_close(s->client); /* frees proxy and table */
    device_drop(s->device, s->gpu);
    device_close(s->device);
    free(s->host);
    free(s->seen);
    void *w = s->w;
    free(s);
    return world_stop(&w);
}

struct scene *scene_need(void **state)
{
    if (!*state)
        devices_need(1);
    return *state;
}

struct tarn_proxy_options scene_options(struct scene *s, uint32_t nrings, uint32_t ring_size)
{
    static struct tarn_proxy_range ranges[2];
    const struct tarn_table_options o = {.size = sizeof(o), .npages = PAGES, .timeout_ms = 20000};
    if (!s->table && tarn_table_new(s->client, &o, &s->table))
        fail_msg("a table: %s", tarn_last_error());
    ranges[0] = (struct tarn_proxy_range){s->host, ROOM};
    ranges[1] = (struct tarn_proxy_range){s->gpu, ROOM};
    return (struct tarn_proxy_options){.size = sizeof(o),
                                       .nrings = nrings,
                                       .ring_size = ring_size,
                                       .table = s->table,
                                       .ranges = ranges,
                                       .nranges = 2};
}

void scene_open_ring(struct scene *s, uint32_t i, struct tarn_ring_producer *p)
{
    struct tarn_ring ring;
    assert_int_equal(tarn_proxy_ring(s->proxy, i, &ring), 0);
    assert_int_equal(tarn_dev_ring_open(p, &ring), 0);
}

void scene_proxy(struct scene *s, const struct tarn_proxy_options *given)
{
    struct tarn_proxy_options o = *given;
    o.size = sizeof(o);
    if (tarn_proxy_new(s->client, &o, &s->proxy))
        fail_msg("a proxy: %s", tarn_last_error());
    scene_open_ring(s, 0, &s->ring);
}

void scene_begin(struct scene *s, const char *transports)
{
    s->client = world_client(s->w, transports);
    const struct tarn_proxy_options o = scene_options(s, 1, 64);
    scene_proxy(s, &o);
}

void scene_begin_faulty(struct scene *s, const char *transports, const char *faults, uint32_t timeout_ms)
{
    const struct tarn_options co = {.transports = transports, .timeout_ms = 20000};
    s->client = client_open_faulty(s->w->redis->url, co, faults);
    struct tarn_proxy_options o = scene_options(s, 1, 64);
    o.timeout_ms = timeout_ms;
    scene_proxy(s, &o);
}

void scene_end(struct scene *s)
{
    tarn_close(s->client);
    s->client = NULL;
    s->table = NULL;
}

/* --- objects ------------------------------------------------------------------------------------ */

void scene_name(struct scene *s, uint32_t page, const char *name)
{
    const struct tarn_key k = key_of(name);
    int rc = tarn_table_set(s->table, page, &k, 1, NULL, 0, NULL);
    assert_true(rc == 0 || rc == TARN_E_NOT_REACHABLE || rc == TARN_E_NOT_FOUND);
}

void scene_put(struct scene *s, uint32_t page, const char *name, char byte, const char *place)
{
    const struct tarn_put_options o = {.size = sizeof(o), .place = place, .flags = TARN_PUT_REPLACE};
    struct tarn_client *c = world_client(s->w, NULL);
    assert_int_equal(client_put(c, name, byte, BYTES, &o), 0);
    tarn_close(c);
    scene_name(s, page, name);
}

/* --- kernels ------------------------------------------------------------------------------------ */

struct tarn_ring_command get_of(uint32_t page, uint32_t offset, uint32_t bytes, const void *to)
{
    return (struct tarn_ring_command){
        .op = TARN_RING_GET, .bytes = bytes, .address = (uintptr_t)to, .index = page, .offset = offset};
}

const struct tarn_ring_command refresh = {.op = TARN_RING_REFRESH};
const struct tarn_ring_command quiet = {.op = TARN_RING_QUIET};

uint64_t push(struct scene *s, const struct tarn_ring_command *c)
{
    uint64_t number = UINT64_MAX;
    assert_int_equal(tarn_dev_ring_push(&s->ring, c, LONG_NS, &number), 0);
    return number;
}

int status_of(struct scene *s, uint64_t number)
{
    int status = 1;
    assert_int_equal(tarn_dev_ring_wait(&s->ring, number, LONG_NS, &status), 0);
    tarn_dev_fence();
    return status;
}

int ask(struct scene *s, const struct tarn_ring_command *c)
{
    return status_of(s, push(s, c));
}

bool is_under_way(struct scene *s, uint64_t number)
{
    int status, rc = tarn_dev_ring_wait(&s->ring, number, 0, &status);
    assert_true(rc == 0 || rc == TARN_E_TIMEOUT);
    return rc == TARN_E_TIMEOUT;
}
