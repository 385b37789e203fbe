/* SPDX-License-Identifier: Apache-2.0 */
#include "server/directory/recheck.h"

#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"

#define MEMBERS 256 /* read at once */

struct tarn_recheck {
    struct tarn_request request;
    struct tarn_store *store;
    struct tarn_directory_thread *directory_thread;
    void (*all_read)(void *arg);
    void *arg;
    bool busy, again;
    uint64_t rounds;
    struct tarn_location found[MEMBERS], freed[MEMBERS];
};

bool tarn_recheck_free_copy(struct tarn_store *s, const struct tarn_location *l)
{
    int pool = tarn_store_pool_find(s, l->pool, strlen(l->pool));
    if (pool < 0)
        return true;
    bool publishing = tarn_store_is_publishing(s, (uint32_t)pool, l->slot, l->gen);
    tarn_store_release(s, (uint32_t)pool, l->slot, l->gen);
    return !publishing;
}

static void submit(struct tarn_recheck *r, size_t nfreed)
{
    r->busy = true;
    r->request.nfreed = nfreed;
    r->request.n = MEMBERS;
    tarn_directory_thread_submit(r->directory_thread, &r->request);
}

/* Members go out of the set after their copies were freed; what is being published stays for another time. */
static void read_some(struct tarn_request *request)
{
    struct tarn_recheck *r = TARN_CONTAINER_OF(request, struct tarn_recheck, request);
    size_t nfreed = 0;
    r->busy = false;
    if (request->failure.code)
        return;
    for (size_t i = 0; i < request->n; i++) {
        if (tarn_recheck_free_copy(r->store, &r->found[i]))
            r->freed[nfreed++] = r->found[i];
    }
    if (!nfreed)
        r->rounds++;
    if (nfreed || r->again) {
        r->again = r->again && nfreed;
        submit(r, nfreed);
    } else {
        r->all_read(r->arg);
    }
}

int tarn_recheck_new(struct tarn_store *s, struct tarn_directory_thread *dt, void (*all_read)(void *arg),
                     void *arg, struct tarn_recheck **r_p)
{
    struct tarn_recheck *r = calloc(1, sizeof(*r));
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "recheck: out of memory");
    r->store = s;
    r->directory_thread = dt;
    r->all_read = all_read;
    r->arg = arg;
    r->request = (struct tarn_request){
        .kind = TARN_REQUEST_RECHECK, .done = read_some, .freed = r->freed, .found = r->found};
    *r_p = r;
    return 0;
}

void tarn_recheck_free(struct tarn_recheck *r)
{
    free(r);
}

void tarn_recheck_tick(struct tarn_recheck *r)
{
    if (!r->busy)
        submit(r, 0);
}

uint64_t tarn_recheck_anew(struct tarn_recheck *r)
{
    uint64_t then = r->rounds + (r->busy ? 2 : 1);
    r->again = r->busy;
    tarn_recheck_tick(r);
    return then;
}

uint64_t tarn_recheck_rounds(const struct tarn_recheck *r)
{
    return r->rounds;
}
