/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA ports of this machine for doctor and info: what sysfs says of them, and how tarn would use them. */
#include "client/cli/cli_rdma.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "client/setting.h"
#include "transport/rdma/rdma_rail.h"

#define SYSFS "/sys/class/infiniband"

/* The file's first line. If it has a ": " ("4: ACTIVE"), only the part after it. */
static void read_line(const char *path, char *out, size_t bytes)
{
    char line[128] = "";
    FILE *f = fopen(path, "re");

    if (f && !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (f)
        fclose(f);
    const char *from = strstr(line, ": ");
    from = from ? from + 2 : line;
    size_t n = strcspn(from, "\n");
    snprintf(out, bytes, "%.*s", (int)n, n ? from : "unknown");
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

static int describe_port(const char *device, const char *port, const struct tarn_rails *rails, cli_rdma_fn fn,
                         void *arg)
{
    struct cli_rdma_port p = {.mtu = 0};
    char path[300];

    snprintf(p.name, sizeof p.name, "%.64s:%.4s", device, port);
    snprintf(path, sizeof path, SYSFS "/%.64s/ports/%.4s/state", device, port);
    read_line(path, p.state, sizeof p.state);
    snprintf(path, sizeof path, SYSFS "/%.64s/ports/%.4s/link_layer", device, port);
    read_line(path, p.link, sizeof p.link);
    snprintf(path, sizeof path, SYSFS "/%.64s/ports/%.4s/rate", device, port);
    read_line(path, p.rate, sizeof p.rate);
    p.active = strcmp(p.state, "ACTIVE") == 0;
    describe_rail(rails, &p);
    fn(arg, &p);
    return 1;
}

static int each_port(const char *device, const struct tarn_rails *rails, cli_rdma_fn fn, void *arg)
{
    char path[300];
    int n = 0;

    snprintf(path, sizeof path, SYSFS "/%.64s/ports", device);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            n += describe_port(device, e->d_name, rails, fn, arg);
    if (dir)
        closedir(dir);
    return n;
}

int cli_rdma_ports(char why[TARN_SENTENCE], cli_rdma_fn fn, void *arg)
{
    DIR *dir = opendir(SYSFS);
    struct tarn_rails rails = {.n = 0};
    int n = 0;

    why[0] = '\0';
    if (tarn_rails_open(tarn_setting(NULL, "TARN_RDMA_DEVICES"), &rails))
        snprintf(why, TARN_SENTENCE, "%s", tarn_last_error());
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            n += each_port(e->d_name, &rails, fn, arg);
    if (dir)
        closedir(dir);
    tarn_rails_close(&rails);
    return n;
}

void cli_rdma_port_text(const struct cli_rdma_port *p, char *out, size_t bytes)
{
    int n = snprintf(out, bytes, "%s, %s, %s", p->state, p->link, p->rate);

    if (p->used && n > 0 && (size_t)n < bytes)
        snprintf(out + n, bytes - (size_t)n, ", MTU %u, GID %u %s", p->mtu, p->gid_index, p->gid);
}
