/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA ports of this machine for doctor and info: what sysfs says of them, and how tarn would use them. */
#include "client/cli/cli_rdma.h"

#include <arpa/inet.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "client/cli/cli_text.h"
#include "client/setting.h"
#include "transport/rdma/rdma_rail.h"

#define SYSFS "/sys/class/infiniband"

/* The first line of a port's file. If it has a ": " ("4: ACTIVE"), only the part after it. */
static void read_line(const char *port, const char *file, char *out, size_t bytes)
{
    char path[400], line[128];

    snprintf(path, sizeof path, "%s/%s", port, file);
    cli_first_line(path, line, sizeof line);
    const char *from = strstr(line, ": ");
    from = from ? from + 2 : line;
    snprintf(out, bytes, "%.*s", (int)bytes - 1, *from ? from : "unknown");
}

static void describe_rail(const struct tarn_rails *rails, struct cli_rdma_port *p)
{
    for (uint32_t i = 0; i < rails->n; i++) {
        const struct tarn_rail *r = &rails->rail[i];
        if (strcmp(r->name, p->name) != 0)
            continue;
        p->used = true;
        p->mtu = 128u << r->mtu;
        p->gid_index = r->gid_index;
        inet_ntop(AF_INET6, r->gid.raw, p->gid, sizeof p->gid);
    }
}

static void describe_port(const char *path, const struct tarn_rails *rails, struct cli_rdma_port *p)
{
    char device[65] = "", port[5] = "";

    sscanf(path, SYSFS "/%64[^/]/ports/%4s", device, port);
    snprintf(p->name, sizeof p->name, "%s:%s", device, port);
    read_line(path, "state", p->state, sizeof p->state);
    read_line(path, "link_layer", p->link, sizeof p->link);
    read_line(path, "rate", p->rate, sizeof p->rate);
    p->active = strcmp(p->state, "ACTIVE") == 0;
    describe_rail(rails, p);
}

int cli_rdma_ports(struct tarn_reason *why, cli_rdma_fn fn, void *arg)
{
    struct tarn_rails rails = {.n = 0};
    glob_t ports = {0};

    tarn_reason_keep(why, tarn_rails_open(tarn_setting(NULL, "TARN_RDMA_DEVICES"), &rails));
    glob(SYSFS "/*/ports/*", 0, NULL, &ports);
    size_t n = ports.gl_pathc;
    for (size_t i = 0; i < n; i++) {
        struct cli_rdma_port p = {.mtu = 0};
        describe_port(ports.gl_pathv[i], &rails, &p);
        fn(arg, &p);
    }
    globfree(&ports);
    tarn_rails_close(&rails);
    return (int)n;
}

void cli_rdma_port_text(const struct cli_rdma_port *p, char *out, size_t bytes)
{
    int n = snprintf(out, bytes, "%s, %s, %s", p->state, p->link, p->rate);

    if (p->used && n > 0 && (size_t)n < bytes)
        snprintf(out + n, bytes - (size_t)n, ", MTU %u, GID %u %s", p->mtu, p->gid_index, p->gid);
}
