/* SPDX-License-Identifier: Apache-2.0 */
#include "client/place.h"

#include <math.h>
#include <stdbool.h>

#include "base/hash.h"

static double score(const struct tarn_key *key, const struct tarn_candidate *c)
{
    uint64_t h = tarn_hash(key->data, key->bytes, c->seed);
    double u = ((double)(h >> 11) + 0.5) * 0x1p-53;

    return -c->weight / log(u);
}

static bool picked(const uint32_t *out, uint32_t n, uint32_t i)
{
    for (uint32_t k = 0; k < n; k++)
        if (out[k] == i)
            return true;
    return false;
}

static bool host_taken(const struct tarn_candidate *cand, const uint32_t *out, uint32_t n, uint64_t host)
{
    for (uint32_t k = 0; k < n; k++)
        if (cand[out[k]].host == host)
            return true;
    return false;
}

/* The best candidate not picked yet; with `spread` only on a host not taken yet. -1: none. */
static int64_t best(const struct tarn_key *key, const struct tarn_candidate *cand, uint32_t n,
                    const uint32_t *out, uint32_t nout, bool spread)
{
    double top = 0;
    int64_t at = -1;

    for (uint32_t i = 0; i < n; i++) {
        if (cand[i].weight <= 0 || picked(out, nout, i) ||
            (spread && host_taken(cand, out, nout, cand[i].host)))
            continue;
        double s = n == 1 ? 1 : score(key, &cand[i]);
        if (at < 0 || s > top) {
            top = s;
            at = i;
        }
    }
    return at;
}

uint32_t tarn_place_pick(const struct tarn_key *key, const struct tarn_candidate *cand, uint32_t n,
                         uint32_t k, uint32_t *out)
{
    uint32_t nout = 0;

    while (nout < k) {
        int64_t i = best(key, cand, n, out, nout, true);
        if (i < 0)
            i = best(key, cand, n, out, nout, false);
        if (i < 0)
            break;
        out[nout++] = (uint32_t)i;
    }
    return nout;
}
