/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn top: live view of nodes and pools. Each frame is a text. It is shown with ncurses, or printed to
 * standard output if that or standard input is no terminal.
 *
 * Threads: `listen` counts events and takes the lock only to add. The main thread takes the counts for
 * each frame and resets them. Gets are not counted, because nodes do not see them.
 */
#include <ncurses.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_text.h"

#define POOLS_COUNTED 256
#define LISTEN_MS 500 /* how long closing may wait for the thread */

struct top_config {
    struct cli_common common;
    bool once;
    int64_t interval_ms;
};

#define AT(member_) offsetof(struct top_config, member_)

static const struct tarn_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_FLAG("once", 0, AT(once), "Print one frame and end."),
    CLI_INT("interval-ms", 'i', AT(interval_ms), "1000", 50, 3600000, "MS",
            "Time between frames; rates are averages over it."),
};

struct counts {
    char pool[128]; /* "node/pool" */
    uint64_t stored, stored_bytes, removed, evicted;
};

struct top {
    struct cli *c;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock; /* protects counted, ncounted */
    struct counts counted[POOLS_COUNTED];
    size_t ncounted;

    /* counts for the frame being made */
    struct counts now[POOLS_COUNTED];
    size_t nnow;
    uint64_t taken_ns;
    double seconds;
    struct cli_table table;
    json_t *json;
    size_t nnodes;
    uint64_t bytes, used, objects;
};

/* --- counting ----------------------------------------------------------------------------------- */

/* The counts of a pool; NULL if there are too many pools. */
static struct counts *find_counts(struct counts *all, size_t *n, const char *node, const char *pool, bool add)
{
    char name[sizeof all->pool];

    snprintf(name, sizeof name, "%s/%s", node, pool);
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(all[i].pool, name) == 0)
            return &all[i];
    }
    if (!add || *n == POOLS_COUNTED)
        return NULL;
    memset(&all[*n], 0, sizeof all[*n]);
    memcpy(all[*n].pool, name, sizeof name);
    return &all[(*n)++];
}

static int count_event(void *arg, const char *what, const struct tarn_key *key, const char *node,
                       const char *pool, uint64_t bytes)
{
    struct top *t = arg;

    (void)key;
    pthread_mutex_lock(&t->lock);
    struct counts *c = find_counts(t->counted, &t->ncounted, node, pool, true);
    if (c && strcmp(what, "stored") == 0) {
        c->stored++;
        c->stored_bytes += bytes;
    } else if (c && strcmp(what, "evicted") == 0) {
        c->evicted++;
    } else if (c) {
        c->removed++;
    }
    pthread_mutex_unlock(&t->lock);
    return atomic_load(&t->stop);
}

static void *listen_for_events(void *arg)
{
    struct top *t = arg;

    while (!atomic_load(&t->stop)) {
        /* Redis is away, as frames say. Try again. */
        if (tarn_events(t->c->client, LISTEN_MS, count_event, t) < 0)
            usleep(LISTEN_MS * 1000);
    }
    return NULL;
}

static void take_counts(struct top *t)
{
    uint64_t now = tarn_now_ns();

    pthread_mutex_lock(&t->lock);
    memcpy(t->now, t->counted, t->ncounted * sizeof t->counted[0]);
    t->nnow = t->ncounted;
    t->ncounted = 0;
    pthread_mutex_unlock(&t->lock);
    t->seconds = (double)(now - t->taken_ns) / 1e9;
    t->taken_ns = now;
}

/* --- one frame ---------------------------------------------------------------------------------- */

static void add_pool(struct top *t, const struct tarn_node_info *n, const struct tarn_pool_info *p)
{
    struct counts none = {0}, *c = find_counts(t->now, &t->nnow, n->id, p->name, false);
    uint64_t used = p->bytes - (p->free_bytes < p->bytes ? p->free_bytes : p->bytes);
    char bar[40], used_text[16], size[16], rate[16];

    c = c ? c : &none;
    t->used += used;
    cli_fill_bar(used, p->bytes, 8, bar);
    tarn_size_format(used, used_text);
    tarn_size_format(p->bytes, size);
    tarn_size_format((uint64_t)((double)c->stored_bytes / t->seconds), rate);
    cli_cell(&t->table, "%s/%s", n->id, p->name);
    cli_row(&t->table, bar, used_text, size, NULL);
    cli_cell(&t->table, "%llu", (unsigned long long)p->objects);
    cli_cell(&t->table, "%.0f", (double)c->stored / t->seconds);
    cli_cell(&t->table, "%s/s", rate);
    cli_cell(&t->table, "%.0f", (double)c->evicted / t->seconds);
    cli_cell(&t->table, "%.0f", (double)c->removed / t->seconds);
    cli_row(&t->table, p->transport ? p->transport : "-", n->state ? n->state : "?", NULL);
    json_array_append_new(t->json,
                          json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s?}", "node", n->id,
                                    "pool", p->name, "state", cli_json_text(n->state), "bytes",
                                    (json_int_t)p->bytes, "free_bytes", (json_int_t)p->free_bytes, "objects",
                                    (json_int_t)p->objects, "puts_per_s", (double)c->stored / t->seconds,
                                    "put_bytes_per_s", (double)c->stored_bytes / t->seconds,
                                    "evictions_per_s", (double)c->evicted / t->seconds, "removals_per_s",
                                    (double)c->removed / t->seconds, "transport", p->transport));
}

static int add_node(void *arg, const struct tarn_node_info *n)
{
    struct top *t = arg;

    for (uint32_t i = 0; i < n->npools; i++) {
        add_pool(t, n, &n->pools[i]);
        t->bytes += n->pools[i].bytes;
        t->objects += n->pools[i].objects;
    }
    t->nnodes++;
    return 0;
}

static void begin_frame(struct top *t)
{
    take_counts(t);
    t->table = (struct cli_table){.align = "llrrrrrrrll"};
    cli_row(&t->table, "POOL", "FILL", "USED", "SIZE", "OBJECTS", "PUT/s", "PUT", "EVICT/s", "REMOVE/s",
            "VIA", "STATE", NULL);
    t->json = json_array();
    t->nnodes = 0;
    t->bytes = t->used = t->objects = 0;
}

/* The frame as text, or as a line of JSON with --json. A failure is both shown in the text and returned. */
static int make_frame(struct top *t, bool coloured, struct tarn_buf *out)
{
    char when[16] = "", used[16], size[16];
    time_t now = time(NULL);
    struct tm tm;

    begin_frame(t);
    int rc = tarn_nodes(t->c->client, cli_timeout(t->c, 0), add_node, t);
    if (localtime_r(&now, &tm))
        strftime(when, sizeof when, "%H:%M:%S", &tm);
    tarn_size_format(t->used, used);
    tarn_size_format(t->bytes, size);
    if (t->c->common->json) {
        struct tarn_buf unused = {0};
        char *line = NULL;
        json_t *document = json_pack("{s:I, s:f, s:o}", "time_ms", (json_int_t)tarn_unix_ms(), "seconds",
                                     t->seconds, "pools", t->json);
        cli_table_print(&t->table, false, &unused);
        tarn_buf_free(&unused);
        line = json_dumps(document, JSON_COMPACT);
        tarn_buf_printf(out, "%s\n", line ? line : "{}");
        free(line);
        json_decref(document);
        return rc;
    }
    json_decref(t->json);
    tarn_buf_printf(out, "tarn top  %s  %zu node%s  %s of %s used  %llu object%s\n\n", when, t->nnodes,
                    CLI_S(t->nnodes), used, size, (unsigned long long)t->objects, CLI_S(t->objects));
    cli_table_print(&t->table, coloured, out);
    if (rc < 0)
        tarn_buf_printf(out, "%s\n", tarn_last_error());
    return rc;
}

/* --- showing it --------------------------------------------------------------------------------- */

static void draw(const struct tarn_buf *frame)
{
    const char *line = frame->data;

    erase();
    for (int y = 0; line && *line && y < LINES; y++) {
        size_t n = strcspn(line, "\n");
        if (y == 0 || y == 2)
            attron(A_BOLD);
        /* Cut at the terminal's width; otherwise the rest would wrap onto the next line. */
        mvaddnstr(y, 0, line, (int)n < COLS ? (int)n : COLS);
        attroff(A_BOLD);
        line += n + (line[n] == '\n');
    }
    refresh();
}

/* ncurses itself restores the terminal on SIGINT and SIGTERM. */
static int run_screen(struct top *t, int interval_ms)
{
    const char *term = tarn_env("TERM");
    SCREEN *screen = newterm(NULL, stdout, stdin); /* unlike initscr(), it does not exit on failure */
    int key = 0;

    if (!screen)
        return tarn_fail(TARN_E_SYSTEM, "TERM=%s: ncurses does not know this terminal: use --once",
                         term ? term : "");
    cbreak();
    noecho();
    curs_set(0);
    while (key != 'q' && key != 'Q') {
        struct tarn_buf frame = {0};
        make_frame(t, false, &frame);
        draw(&frame);
        tarn_buf_free(&frame);
        timeout(interval_ms);
        key = getch();
    }
    endwin();
    delscreen(screen);
    return 0;
}

static int run_plain(struct top *t, int64_t interval_ms, bool once)
{
    int rc;

    do {
        struct tarn_buf frame = {0};
        struct timespec pause = {interval_ms / 1000, interval_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
        rc = make_frame(t, cli_coloured(), &frame);
        int printed = cli_print(&frame);
        if (printed == 0 && fflush(stdout) != 0)
            printed = tarn_fail(TARN_E_SYSTEM, "standard output: %m");
        if (printed != 0)
            return printed;
    } while (!once);
    return rc;
}

static int run(struct cli *c, const void *config)
{
    const struct top_config *o = config;
    struct top *t = calloc(1, sizeof *t);
    int rc = t ? cli_want_args(c, 0, 0, "") : tarn_fail(TARN_E_NO_MEMORY, "no memory");

    if (rc == 0)
        rc = cli_connect(c);
    if (rc != 0)
        goto free_top;
    t->c = c;
    t->taken_ns = tarn_now_ns();
    pthread_mutex_init(&t->lock, NULL);
    if (pthread_create(&t->thread, NULL, listen_for_events, t) != 0) {
        rc = tarn_fail(TARN_E_SYSTEM, "no thread for the events");
        goto destroy_lock;
    }
    if (o->once || c->common->json || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        rc = run_plain(t, o->interval_ms, o->once);
    else
        rc = run_screen(t, (int)o->interval_ms);
    atomic_store(&t->stop, true);
    pthread_join(t->thread, NULL);
destroy_lock:
    pthread_mutex_destroy(&t->lock);
free_top:
    free(t);
    return rc;
}

static const struct tarn_program program = {
    .name = "tarn top",
    .arguments = "",
    .brief = "show nodes, pools and rates, live",
    .description =
        "Shows every pool with its fill and what is put, evicted and removed a second. q ends it. "
        "Frames are printed one below the other when standard input or output is no terminal, as "
        "lines of JSON with --json. Gets have no rate: they cost a node nothing, so it cannot count them.",
    CLI_OPTIONS(options),
};

const struct cli_command cli_top = {&program, sizeof(struct top_config), run};
