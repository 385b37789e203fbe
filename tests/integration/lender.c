/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lender RIGHTS BYTES TTL_MS NAME...: lends a window, at $TARN_REDIS in $TARN_NS, and publishes one lease of
 * it for each name. RIGHTS are r or rw; TTL_MS is for the names, 0: none.
 *
 * It prints "ready" when all is published, answers the line "recall" with "recalled" when all leases have
 * ended, and ends at the end of its input.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tarn/window.h>

#define LEASES_MAX 64

struct lender {
    struct tarn_client *client;
    struct tarn_window *window;
    struct tarn_lease *leases[LEASES_MAX];
    int n;
    void *memory;
};

static int lend(struct lender *l, uint64_t bytes)
{
    int rc = tarn_open(NULL, &l->client);
    if (!rc)
        rc = tarn_window_alloc(bytes, 0, &l->memory);
    return rc ? rc : tarn_window_new(l->client, l->memory, bytes, &l->window);
}

static int publish(struct lender *l, const char *rights, const char *name, uint32_t ttl_ms)
{
    const struct tarn_lease_options o = {.size = sizeof(o),
                                         .flags = strcmp(rights, "rw") ? 0 : TARN_LEASE_WRITE};
    int rc = tarn_lease(l->window, NULL, 0, &o, &l->leases[l->n]);
    return rc ? rc : tarn_lease_publish(l->leases[l->n++], name, ttl_ms, 0);
}

static int recall(struct lender *l)
{
    int rc = 0;
    while (!rc && l->n)
        rc = tarn_recall(l->leases[--l->n], 0);
    return rc;
}

static int serve(struct lender *l)
{
    char line[32];
    int rc = 0;
    puts("ready");
    fflush(stdout);
    while (!rc && fgets(line, sizeof(line), stdin)) {
        rc = recall(l);
        if (!rc)
            puts("recalled");
        fflush(stdout);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct lender l = {0};
    if (argc < 4 || argc - 4 > LEASES_MAX)
        return 2;
    int rc = lend(&l, strtoull(argv[2], NULL, 10));
    for (int i = 4; !rc && i < argc; i++)
        rc = publish(&l, argv[1], argv[i], (uint32_t)strtoul(argv[3], NULL, 10));
    if (!rc)
        rc = serve(&l);
    if (rc)
        fprintf(stderr, "lender: %s\n", tarn_last_error());
    tarn_close(l.client);
    tarn_window_free(l.memory);
    return rc ? 1 : 0;
}
