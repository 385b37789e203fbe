/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/standin/fail.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *const tarn_standin_event_names[FAIL_N] = {"alloc",  "open", "pin",   "queue",  "copy",
                                                      "mark",   "poll", "lost",  "dmabuf", "flush",
                                                      "export", "time", "ready", "gather"};

/* The call number `at` fails; 0: none, UINT64_MAX: all. */
static struct trigger {
    uint64_t at, count;
} triggers[FAIL_N];

void tarn_standin_triggers(const char *text)
{
    memset(triggers, 0, sizeof(triggers));
    while (text && *text) {
        for (int i = 0; i < FAIL_N; i++) {
            size_t n = strlen(tarn_standin_event_names[i]);
            if (strncmp(text, tarn_standin_event_names[i], n) == 0 && text[n] == ':')
                triggers[i].at = text[n + 1] == '*' ? UINT64_MAX : strtoull(text + n + 1, NULL, 10);
        }
        text = strchr(text, ',');
        text += text != NULL;
    }
}

bool tarn_standin_due(enum tarn_standin_event e)
{
    struct trigger *t = &triggers[e];
    return t->at == UINT64_MAX || ++t->count == t->at;
}
