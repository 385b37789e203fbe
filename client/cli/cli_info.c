/* SPDX-License-Identifier: Apache-2.0 */
/* tarn info: nodes, their pools and how full these are, and the transport used for each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_rdma.h"
#include "client/cli/cli_text.h"

struct info {
    struct cli_table nodes, pools, transports, ports;
    json_t *json_nodes, *json_transports, *json_ports;
    size_t nnodes, npools;
    uint64_t bytes, used, free_bytes, objects;
};

static json_t *pool_json(const struct tarn_pool_info *p)
{
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:s?}", "name", p->name, "kind", cli_json_text(p->kind),
                     "bytes", (json_int_t)p->bytes, "free_bytes", (json_int_t)p->free_bytes, "objects",
                     (json_int_t)p->objects, "transport", p->transport);
}

static json_t *node_json(const struct tarn_node_info *n)
{
    json_t *pools = json_array();

    for (uint32_t i = 0; i < n->npools; i++)
        json_array_append_new(pools, pool_json(&n->pools[i]));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b, s:o}", "id", n->id, "host",
                     cli_json_text(n->host), "control", cli_json_text(n->control), "unix_path",
                     cli_json_text(n->unix_path), "version", cli_json_text(n->version), "state",
                     cli_json_text(n->state), "epoch", cli_json_hex(n->epoch), "started_ms",
                     (json_int_t)n->started_ms, "same_host", n->same_host, "pools", pools);
}

static void add_pool(struct info *f, const struct tarn_node_info *n, const struct tarn_pool_info *p)
{
    uint64_t used = p->bytes - (p->free_bytes < p->bytes ? p->free_bytes : p->bytes);
    char bar[40], used_text[16], size[16];

    cli_fill_bar(used, p->bytes, CLI_BAR_MAX, bar);
    tarn_size_format(used, used_text);
    tarn_size_format(p->bytes, size);
    cli_cell(&f->pools, "%s/%s", n->id, p->name);
    cli_row(&f->pools, p->kind, bar, used_text, size, NULL);
    cli_cell(&f->pools, "%llu", (unsigned long long)p->objects);
    cli_cell_in(&f->pools, p->transport ? CLI_GREEN : CLI_RED, "%s",
                p->transport ? p->transport : "not reachable");
    f->npools++;
    f->bytes += p->bytes;
    f->used += used;
    f->free_bytes += p->free_bytes;
    f->objects += p->objects;
}

static int add_node(void *arg, const struct tarn_node_info *n)
{
    struct info *f = arg;
    uint64_t now = tarn_unix_ms();
    char up[16];

    cli_age_format(now > n->started_ms ? now - n->started_ms : 0, up);
    cli_cell(&f->nodes, "%s", n->id);
    cli_cell_in(&f->nodes, n->state && strcmp(n->state, "ready") == 0 ? CLI_GREEN : CLI_YELLOW, "%s",
                n->state ? n->state : "?");
    cli_cell(&f->nodes, "%s%s", n->host ? n->host : "?", n->same_host ? " (here)" : "");
    cli_row(&f->nodes, n->control ? n->control : "-", n->version ? n->version : "?", up, NULL);
    for (uint32_t i = 0; i < n->npools; i++)
        add_pool(f, n, &n->pools[i]);
    json_array_append_new(f->json_nodes, node_json(n));
    f->nnodes++;
    return 0;
}

static int add_transport(void *arg, const char *name, const char *why)
{
    struct info *f = arg;

    cli_cell(&f->transports, "%s", name);
    cli_cell_in(&f->transports, why ? CLI_YELLOW : CLI_GREEN, "%s", why ? "no" : "usable");
    cli_cell(&f->transports, "%s", why ? why : "");
    json_array_append_new(f->json_transports, json_pack("{s:s, s:b, s:o}", "name", name, "usable", !why,
                                                        "why", cli_json_text(why)));
    return 0;
}

static void add_port(void *arg, const struct cli_rdma_port *p)
{
    struct info *f = arg;

    cli_cell(&f->ports, "%s", p->name);
    cli_cell_in(&f->ports, p->used ? CLI_GREEN : CLI_YELLOW, "%s", p->state);
    cli_row(&f->ports, p->link, p->rate, NULL);
    json_t *port = json_pack("{s:s, s:s, s:s, s:s, s:b}", "name", p->name, "state", p->state, "link", p->link,
                             "rate", p->rate, "used", p->used);
    if (p->used) {
        cli_cell(&f->ports, "%u", p->mtu);
        cli_cell(&f->ports, "%u %s", p->gid_index, p->gid);
        json_object_set_new(port, "mtu", json_integer(p->mtu));
        json_object_set_new(port, "gid_index", json_integer(p->gid_index));
        json_object_set_new(port, "gid", json_string(p->gid));
    } else {
        cli_row(&f->ports, "-", "not used", NULL);
    }
    json_array_append_new(f->json_ports, port);
}

static void print_none(const struct cli *c, struct tarn_buf *out)
{
    const char *ns = c->common->ns;

    if (strcmp(ns, "default") == 0)
        tarn_buf_printf(out, "no nodes: start one with `tarnd --redis ADDRESS`\n");
    else
        tarn_buf_printf(out, "no nodes in namespace %s: start one with `tarnd --redis ADDRESS --ns %s`\n", ns,
                        ns);
}

/* `listed`: Redis has said which nodes there are. */
static int print_text(struct info *f, const struct cli *c, bool listed)
{
    struct tarn_buf out = {0};
    bool coloured = cli_coloured();
    char used[16], size[16];

    cli_table_print(&f->nodes, coloured, &out);
    if (f->nnodes)
        tarn_buf_printf(&out, "\n");
    else if (listed)
        print_none(c, &out);
    cli_table_print(&f->pools, coloured, &out);
    if (f->npools) {
        tarn_size_format(f->used, used);
        tarn_size_format(f->bytes, size);
        tarn_buf_printf(&out, "%zu node%s, %zu pool%s, %s of %s used, %llu object%s\n", f->nnodes,
                        CLI_S(f->nnodes), f->npools, CLI_S(f->npools), used, size,
                        (unsigned long long)f->objects, CLI_S(f->objects));
    }
    if (listed)
        tarn_buf_printf(&out, "\n");
    cli_table_print(&f->transports, coloured, &out);
    if (json_array_size(f->json_ports))
        tarn_buf_printf(&out, "\n");
    cli_table_print(&f->ports, coloured, &out);
    return cli_print(&out);
}

static int print_json(struct info *f, const struct cli *c)
{
    struct tarn_buf unused = {0};

    cli_table_print(&f->nodes, false, &unused);
    cli_table_print(&f->pools, false, &unused);
    cli_table_print(&f->transports, false, &unused);
    cli_table_print(&f->ports, false, &unused);
    tarn_buf_free(&unused);
    return cli_print_json(json_pack("{s:o, s:O, s:O, s:O, s:I, s:I, s:I}", "namespace",
                                    cli_json_text(c->common->ns), "nodes", f->json_nodes, "transports",
                                    f->json_transports, "rdma_ports", f->json_ports, "bytes",
                                    (json_int_t)f->bytes, "free_bytes", (json_int_t)f->free_bytes, "objects",
                                    (json_int_t)f->objects),
                          false);
}

static int run(struct cli *c, const void *config)
{
    (void)config;
    struct info f = {
        .nodes = {.align = "llllll"},
        .pools = {.align = "lllrrrl"},
        .transports = {.align = "lll"},
        .ports = {.align = "llllrl"},
        .json_nodes = json_array(),
        .json_transports = json_array(),
        .json_ports = json_array(),
    };
    struct tarn_reason why;
    int rc = cli_want_args(c, 0, 0, "");

    cli_row(&f.nodes, "NODE", "STATE", "HOST", "CONTROL", "VERSION", "UP", NULL);
    cli_row(&f.pools, "POOL", "KIND", "FILL", "USED", "SIZE", "OBJECTS", "VIA", NULL);
    cli_row(&f.transports, "TRANSPORT", "HERE", "", NULL);
    cli_row(&f.ports, "RDMA PORT", "STATE", "LINK", "RATE", "MTU", "GID", NULL);
    if (rc == 0)
        rc = tarn_transports(add_transport, &f);
    if (rc == 0)
        cli_rdma_ports(&why, add_port, &f);
    int connected = rc ? rc : cli_connect(c);
    if (connected == 0)
        connected = tarn_nodes(c->client, cli_timeout(c, 0), add_node, &f);
    /* Show what works on this machine even if Redis is away. */
    if (connected != 0)
        cli_error(c, connected, "%s", tarn_last_error());
    int printed = c->common->json ? print_json(&f, c) : print_text(&f, c, connected == 0);
    json_decref(f.json_nodes);
    json_decref(f.json_transports);
    json_decref(f.json_ports);
    return connected ? connected : printed;
}

static const struct tarn_option options[] = {CLI_COMMON_OPTIONS};

static const struct tarn_program program = {
    .name = "tarn info",
    .arguments = "",
    .brief = "show nodes, pools and how full they are, and which transports are usable",
    .description = "VIA is the transport that a get from here would use for the pool.",
    CLI_OPTIONS(options),
};

const struct cli_command cli_info = {&program, sizeof(struct cli_common), run};
