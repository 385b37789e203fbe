/* SPDX-License-Identifier: Apache-2.0 */
/* The list of transports, best first, and how a user's choice of names is applied to it. */
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/rdma/rdma.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/tcpx/tcpx.h"

const struct tarn_transport_ops *const tarn_transport_list[] = {
    &tarn_shm_ops, &tarn_cuda_ipc_ops, &tarn_rdma_ops, &tarn_tcpx_ops, &tarn_tcp_ops, NULL};

enum { TRANSPORTS = sizeof(tarn_transport_list) / sizeof(tarn_transport_list[0]) - 1 };

static const struct tarn_transport_ops *find_n(const char *name, size_t bytes)
{
    for (int i = 0; i < TRANSPORTS; i++) {
        const struct tarn_transport_ops *t = tarn_transport_list[i];
        if (strlen(t->name) == bytes && memcmp(t->name, name, bytes) == 0)
            return t;
    }
    return NULL;
}

const struct tarn_transport_ops *tarn_transport_find(const char *name)
{
    return find_n(name, strlen(name));
}

static int unknown(const char *name, size_t bytes)
{
    const char *names[TRANSPORTS];
    for (int i = 0; i < TRANSPORTS; i++)
        names[i] = tarn_transport_list[i]->name;
    char word[32];
    size_t n = bytes < sizeof(word) - 1 ? bytes : sizeof(word) - 1;
    memcpy(word, name, n);
    word[n] = '\0';
    const char *near = tarn_nearest(word, names, TRANSPORTS);
    if (near)
        return tarn_fail(TARN_E_CONFIG, "transport \"%s\": there is none of this name: did you mean \"%s\"?",
                         word, near);
    return tarn_fail(
        TARN_E_CONFIG,
        "transport \"%s\": there is none of this name: name one of shm, cuda_ipc, rdma, tcpx, tcp", word);
}

int tarn_transport_named(const char *name, size_t bytes, const struct tarn_transport_ops **ops_p)
{
    const struct tarn_transport_ops *t = find_n(name, bytes);
    if (!t)
        return unknown(name, bytes);
    *ops_p = t;
    return 0;
}

/* Sets the bit of each transport that the comma list names. */
static int parse_names(const char *names, unsigned *wanted_p)
{
    unsigned wanted = 0;
    for (const char *at = names; *at;) {
        size_t bytes = strcspn(at, ",");
        const struct tarn_transport_ops *t = NULL;
        int r = tarn_transport_named(at, bytes, &t);
        if (r)
            return r;
        for (int i = 0; i < TRANSPORTS; i++)
            wanted |= tarn_transport_list[i] == t ? 1u << i : 0;
        at += bytes + (at[bytes] == ',');
    }
    *wanted_p = wanted;
    return 0;
}

static bool is_usable(const struct tarn_transport_ops *t, char *why, size_t why_bytes)
{
    return (t->caps & TARN_CAP_LATE) || t->probe(why, why_bytes) == 0;
}

int tarn_transport_select(const char *names, const struct tarn_logger *log,
                          const struct tarn_transport_ops **out, int max)
{
    unsigned wanted = ~0u;
    bool named = names && *names;
    char first[384] = "";
    int n = 0, r = named ? parse_names(names, &wanted) : 0;
    if (r)
        return r;
    for (int i = 0; i < TRANSPORTS && n < max; i++) {
        const struct tarn_transport_ops *t = tarn_transport_list[i];
        char why[TARN_SENTENCE] = "";
        if (!(wanted & 1u << i))
            continue;
        if (is_usable(t, why, sizeof(why))) {
            out[n++] = t;
            continue;
        }
        if (!*first)
            snprintf(first, sizeof(first), "transport %s is not usable here: %s", t->name, why);
        if (named)
            tarn_log(log, TARN_LOG_WARN, "transport", "msg=\"not usable here\" transport=%s cause=\"%s\"",
                     t->name, why);
    }
    return n ? n : tarn_fail(TARN_E_UNAVAILABLE, "%s", first);
}
