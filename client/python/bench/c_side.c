/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C side of overhead.py, "c_side REDIS": makes the same calls as Python does, when told to, so that both
 * are measured in turn. Reads lines "KIND PREFIX COUNT BYTES" and answers each with "N\n" and N durations in
 * ns (uint64, this machine's order), after it has compared all bytes, or with "error SENTENCE\n".
 *
 *   get    COUNT objects, one call each, each into memory of its own that is there already
 *   fresh  the same, into memory that is allocated for each
 *   batch  COUNT objects in one call
 *   view   COUNT views of one object, each released at once
 *
 * Object i has the key PREFIX/i; its word j is ((i << 32) + j) * MIX. overhead.py puts them.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <tarn/tarn.h>

#define MIX 0x9E3779B97F4A7C15ull
#define COUNT_MAX 4096
#define HUGE_PAGE (2ull << 20)

struct work {
    char kind[16], prefix[64];
    size_t count;
    uint64_t bytes;
};

struct side {
    struct tarn_client *client;
    char *room; /* COUNT rows of BYTES, kept from one line to the next */
    uint64_t room_bytes;
    char keys[COUNT_MAX][80];
    struct tarn_piece pieces[COUNT_MAX];
    struct tarn_item items[COUNT_MAX];
    uint64_t took[COUNT_MAX];
};

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* As NumPy does it: large ones of huge pages, where the system gives them to those who ask. */
static void *allocate(uint64_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, bytes < HUGE_PAGE ? 64 : HUGE_PAGE, bytes))
        return NULL;
    if (bytes >= 2 * HUGE_PAGE)
        madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static bool right(const char *bytes, uint64_t n, uint64_t object)
{
    for (uint64_t j = 0; j < n / 8; j++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * j, 8);
        if (word != ((object << 32) + j) * MIX)
            return false;
    }
    return true;
}

static void set_up(struct side *s, const struct work *w)
{
    for (size_t i = 0; i < w->count; i++) {
        int n = snprintf(s->keys[i], sizeof s->keys[i], "%s/%zu", w->prefix, i);
        s->pieces[i] = (struct tarn_piece){.addr = s->room + i * w->bytes, .bytes = w->bytes};
        s->items[i] = (struct tarn_item){.key = {s->keys[i], (size_t)n},
                                         .pieces = &s->pieces[i],
                                         .npieces = 1,
                                         .tensor = tarn_bytes(w->bytes)};
    }
}

static bool make_room(struct side *s, uint64_t bytes)
{
    if (bytes > s->room_bytes) {
        free(s->room);
        s->room = allocate(bytes);
        s->room_bytes = s->room ? bytes : 0;
    }
    if (s->room)
        memset(s->room, 0, bytes);
    return s->room != NULL;
}

/* --- kinds -------------------------------------------------------------------------------------- */

static int get_each(struct side *s, const struct work *w)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < w->count; i++) {
        uint64_t start = now();
        rc = tarn_get(s->client, &s->items[i], 1, NULL);
        s->took[i] = now() - start;
    }
    return rc;
}

static int get_fresh(struct side *s, const struct work *w)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < w->count; i++) {
        uint64_t start = now();
        s->pieces[i].addr = allocate(w->bytes);
        rc = s->pieces[i].addr ? tarn_get(s->client, &s->items[i], 1, NULL) : TARN_E_NO_MEMORY;
        s->took[i] = now() - start;
    }
    return rc;
}

static int get_batch(struct side *s, const struct work *w)
{
    uint64_t start = now();
    int rc = tarn_get(s->client, s->items, w->count, NULL);
    s->took[0] = now() - start;
    return rc;
}

static int view_each(struct side *s, const struct work *w)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < w->count; i++) {
        struct tarn_view v;
        uint64_t start = now();
        rc = tarn_view(s->client, &s->items[0].key, 0, &v);
        s->took[i] = now() - start;
        if (rc == 0)
            tarn_release(s->client, &v);
    }
    return rc;
}

static const struct {
    const char *name;
    int (*run)(struct side *, const struct work *);
    bool into_room, one_figure;
} kinds[] = {
    {"get", get_each, true, false},
    {"fresh", get_fresh, false, false},
    {"batch", get_batch, true, true},
    {"view", view_each, false, false},
};

/* --- lines -------------------------------------------------------------------------------------- */

/* Compares what was got, gives back what was allocated. */
static bool check(struct side *s, const struct work *w, bool into_room)
{
    bool good = true;
    for (size_t i = 0; i < w->count; i++) {
        char *got = s->pieces[i].addr;
        good = good && got && right(got, w->bytes, i);
        if (!into_room)
            free(got);
    }
    return good;
}

static const char *carry_out(struct side *s, const struct work *w, size_t *figures)
{
    size_t k = 0;
    while (k < sizeof kinds / sizeof kinds[0] && strcmp(kinds[k].name, w->kind))
        k++;
    if (k == sizeof kinds / sizeof kinds[0] || w->count == 0 || w->count > COUNT_MAX)
        return "no such kind, or too many";
    if (kinds[k].into_room && !make_room(s, w->count * w->bytes))
        return "no memory";
    set_up(s, w);
    if (!kinds[k].into_room)
        for (size_t i = 0; i < w->count; i++)
            s->pieces[i].addr = NULL;
    bool moves = kinds[k].run != view_each;
    int rc = kinds[k].run(s, w);
    bool good = !moves || check(s, w, kinds[k].into_room);
    *figures = kinds[k].one_figure ? 1 : w->count;
    return rc ? tarn_last_error() : good ? NULL : "the bytes are wrong";
}

int main(int argc, char **argv)
{
    static struct side s;
    struct work w;
    struct tarn_options o = {.size = sizeof o, .redis = argc > 1 ? argv[1] : NULL, .transports = "shm"};

    if (tarn_open(&o, &s.client)) {
        fprintf(stderr, "c_side: %s\n", tarn_last_error());
        return 1;
    }
    while (scanf("%15s %63s %zu %lu", w.kind, w.prefix, &w.count, &w.bytes) == 4) {
        size_t figures = 0;
        const char *wrong = carry_out(&s, &w, &figures);
        if (wrong) {
            printf("error %s\n", wrong);
        } else {
            printf("%zu\n", figures);
            fwrite(s.took, sizeof s.took[0], figures, stdout);
        }
        fflush(stdout);
    }
    tarn_close(s.client);
    free(s.room);
    return 0;
}
