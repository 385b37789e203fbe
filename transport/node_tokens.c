/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/node_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/text.h"

static struct tarn_token *find(struct tarn_token *all, uint64_t session)
{
    struct tarn_token *t;
    DL_SEARCH_SCALAR(all, t, session, session);
    return t;
}

const char *tarn_token_of(struct tarn_token **all, uint64_t session)
{
    struct tarn_token *t = find(*all, session);
    if (!t && (t = calloc(1, sizeof(*t)))) {
        t->session = session;
        snprintf(t->text, sizeof(t->text), "%016llx%016llx", (unsigned long long)tarn_random64(),
                 (unsigned long long)tarn_random64());
        DL_PREPEND(*all, t);
    }
    return t ? t->text : NULL;
}

bool tarn_token_is(struct tarn_token *all, uint64_t session, const char text[TARN_TOKEN])
{
    const struct tarn_token *t = find(all, session);
    unsigned char differ = 0;
    for (int i = 0; t && i < TARN_TOKEN; i++) /* no hint at the first wrong digit */
        differ |= (unsigned char)(t->text[i] ^ text[i]);
    return t && differ == 0;
}

void tarn_token_drop(struct tarn_token **all, uint64_t session)
{
    struct tarn_token *t = find(*all, session);
    if (!t)
        return;
    DL_DELETE(*all, t);
    free(t);
}

void tarn_tokens_free(struct tarn_token **all)
{
    while (*all)
        tarn_token_drop(all, (*all)->session);
}
