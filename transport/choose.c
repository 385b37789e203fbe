/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/choose.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

static int unknown(const struct tarn_transport_entry *all, int n, const char *name, size_t bytes)
{
    const char *names[TARN_TRANSPORTS_MAX];
    for (int i = 0; i < n; i++)
        names[i] = all[i].name;
    char word[32];
    size_t length = bytes < sizeof(word) - 1 ? bytes : sizeof(word) - 1;
    memcpy(word, name, length);
    word[length] = '\0';
    const char *near = tarn_nearest(word, names, (size_t)n);
    if (near)
        return tarn_fail(TARN_E_CONFIG, "transport \"%s\": there is none of this name: did you mean \"%s\"?",
                         word, near);
    return tarn_fail(
        TARN_E_CONFIG,
        "transport \"%s\": there is none of this name: name one of shm, cuda_ipc, rdma, tcpx, tcp", word);
}

int tarn_choose_named(const struct tarn_transport_entry *all, int n, const char *name, size_t bytes)
{
    for (int i = 0; i < n; i++)
        if (strlen(all[i].name) == bytes && memcmp(all[i].name, name, bytes) == 0)
            return i;
    return unknown(all, n, name, bytes);
}

/* Sets the bit of each transport that the comma list names. */
static int parse_names(const struct tarn_transport_entry *all, int n, const char *names, unsigned *wanted_p)
{
    unsigned wanted = 0;
    for (const char *at = names; *at;) {
        size_t bytes = strcspn(at, ",");
        int i = tarn_choose_named(all, n, at, bytes);
        if (i < 0)
            return i;
        wanted |= 1u << i;
        at += bytes + (at[bytes] == ',');
    }
    *wanted_p = wanted;
    return 0;
}

int tarn_choose(const struct tarn_transport_entry *all, int n, const char *names,
                const struct tarn_logger *log, int *out, int max)
{
    unsigned wanted = ~0u;
    bool named = names && *names;
    struct tarn_reason first = {0};
    int found = 0, r = named ? parse_names(all, n, names, &wanted) : 0;
    if (r)
        return r;
    for (int i = 0; i < n && found < max; i++) {
        const struct tarn_transport_entry *t = &all[i];
        struct tarn_reason why;
        if (!(wanted & 1u << i))
            continue;
        if ((t->caps & TARN_CAP_LATE) || tarn_reason_keep(&why, t->probe()) == 0) {
            out[found++] = i;
            continue;
        }
        if (!first.code)
            tarn_reason_keep(&first, tarn_fail(TARN_E_UNAVAILABLE, "transport %s is not usable here: %s",
                                               t->name, why.text));
        if (named)
            tarn_log(log, TARN_LOG_WARN, "transport", "msg=\"not usable here\" transport=%s cause=\"%s\"",
                     t->name, why.text);
    }
    return found ? found : tarn_reason_fail(&first);
}
