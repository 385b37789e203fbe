/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn ls --windows: names of leases, as they are in Redis. No lender is asked. Descriptors have tokens, so
 * nothing of a descriptor is printed but the fields named here.
 */
#include "client/cli/cli_windows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli_text.h"
#include "client/client.h"
#include "client/window/descriptor.h"

struct row {
    char name[TARN_NODE_ID_MAX + 1];
    uint64_t left_ms;
    bool known; /* the entry is a descriptor of this version */
    struct tarn_descriptor d;
};

struct rows {
    struct row *all;
    size_t n, room;
};

static int add_row(void *arg, const char *name, const char *text, uint64_t left_ms)
{
    struct rows *l = arg;
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct row *all = reallocarray(l->all, room, sizeof(*all));
        if (!all)
            return tarn_fail(TARN_E_NO_MEMORY, "no memory for %zu names", room);
        l->all = all;
        l->room = room;
    }
    struct row *r = &l->all[l->n++];
    *r = (struct row){.left_ms = left_ms};
    snprintf(r->name, sizeof(r->name), "%s", name);
    r->known = tarn_descriptor_parse(text, &r->d) == 0;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

/* Sorts, and leaves each name once. */
static void sort(struct rows *l)
{
    size_t n = 0;
    if (l->n)
        qsort(l->all, l->n, sizeof(*l->all), by_name);
    for (size_t i = 0; i < l->n; i++)
        if (n == 0 || by_name(&l->all[i], &l->all[n - 1]) != 0)
            l->all[n++] = l->all[i];
    l->n = n;
}

static bool is_here(const struct cli *c, const struct row *r)
{
    return strcmp(r->d.host_id, c->client->host_id) == 0;
}

static json_t *row_json(const struct cli *c, const struct row *r)
{
    const struct tarn_descriptor *d = &r->d;
    if (!r->known)
        return json_pack("{s:s, s:I, s:n, s:n, s:n, s:n, s:n, s:n, s:n}", "name", r->name, "ttl_ms",
                         (json_int_t)r->left_ms, "bytes", "kind", "access", "same_host", "lender", "address",
                         "unix_path");
    return json_pack("{s:s, s:I, s:o, s:s, s:s, s:b, s:o, s:o, s:o}", "name", r->name, "ttl_ms",
                     (json_int_t)r->left_ms, "bytes", cli_json_u64(d->bytes), "kind", d->gpu ? "gpu" : "cpu",
                     "access", d->write ? "rw" : "r", "same_host", is_here(c, r), "lender",
                     cli_json_hex(d->epoch), "address", cli_json_text(d->address), "unix_path",
                     cli_json_text(d->unix_path[0] ? d->unix_path : NULL));
}

static int print_json(const struct cli *c, const struct rows *l)
{
    json_t *windows = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(windows, row_json(c, &l->all[i]));
    return cli_print_json(json_pack("{s:o}", "windows", windows), false);
}

static void add_cells(const struct cli *c, const struct row *r, struct cli_table *t)
{
    char size[16], ttl[16];
    cli_age_format(r->left_ms, ttl);
    if (!r->known) {
        cli_row(t, r->name, "?", "?", "?", ttl, "?", "?", NULL);
        return;
    }
    tarn_size_format(r->d.bytes, size);
    cli_row(t, r->name, size, r->d.gpu ? "gpu" : "cpu", r->d.write ? "rw" : "r", ttl,
            is_here(c, r) ? "here" : "other", NULL);
    cli_cell(t, "%016llx at %s", (unsigned long long)r->d.epoch, r->d.address);
}

static int print_details(const struct cli *c, const struct rows *l)
{
    struct cli_table t = {.align = "lrllrll"};
    struct tarn_buf out = {0};
    cli_row(&t, "NAME", "SIZE", "KIND", "ACCESS", "TTL", "HOST", "LENDER", NULL);
    for (size_t i = 0; i < l->n; i++)
        add_cells(c, &l->all[i], &t);
    cli_table_print(&t, cli_coloured(), &out);
    tarn_buf_printf(&out, "%zu name%s\n", l->n, CLI_S(l->n));
    return cli_print(&out);
}

static int print_names(const struct rows *l)
{
    struct tarn_buf out = {0};
    for (size_t i = 0; i < l->n; i++)
        tarn_buf_printf(&out, "%s\n", l->all[i].name);
    return cli_print(&out);
}

int cli_windows_list(struct cli *c, const char *glob, bool details)
{
    struct rows l = {0};
    int rc =
        tarn_directory_names(c->client->directory, glob, tarn_deadline(cli_timeout(c, 0)), NULL, add_row, &l);
    sort(&l);
    if (rc == 0)
        rc = c->common->json ? print_json(c, &l) : details ? print_details(c, &l) : print_names(&l);
    free(l.all);
    return rc;
}
