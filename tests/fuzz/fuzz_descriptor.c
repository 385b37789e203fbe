/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of leases' descriptors, as they are, and with a right hash behind them, which altered
 * ones lack. What is accepted must survive another round.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "client/window/descriptor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void parse(const char *text)
{
    struct tarn_descriptor d, again;
    char out[TARN_DESCRIPTOR_MAX];

    memset(&d, 0, sizeof d);
    if (tarn_descriptor_parse(text, &d) != 0)
        return;
    demand(d.window < TARN_WINDOWS_MAX && *d.ns && *d.address && strlen(d.token) == TARN_WINDOW_TOKEN);
    demand(tarn_descriptor_format(&d, out) == 0);
    memset(&again, 0, sizeof again);
    demand(tarn_descriptor_parse(out, &again) == 0);
    demand(strcmp(d.address, again.address) == 0 && d.gen == again.gen && d.slot == again.slot);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 20);

    demand(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    parse(text);
    bytes = strlen(text);
    snprintf(text + bytes, 20, " %016" PRIx64, tarn_hash(text, bytes, 0));
    parse(text);
    free(text);
    return 0;
}
