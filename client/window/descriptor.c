/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/descriptor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

#define VERSION "1"

static uint64_t check_of(const char *text, size_t bytes)
{
    return tarn_hash(text, bytes, 0);
}

int tarn_descriptor_format(const struct tarn_descriptor *d, char text[TARN_DESCRIPTOR_MAX])
{
    int n = snprintf(text, TARN_DESCRIPTOR_MAX,
                     "tarn-window " VERSION " %s %s %s %s %016" PRIx64 " %u %u %016" PRIx64 " %" PRIu64
                     " %s %s %s",
                     d->ns, d->address, d->unix_path[0] ? d->unix_path : "-", d->host_id, d->epoch, d->window,
                     d->slot, d->gen, d->bytes, d->gpu ? "gpu" : "cpu", d->write ? "rw" : "r", d->token);
    if (n < 0 || n + 18 > TARN_DESCRIPTOR_MAX)
        return tarn_fail(
            TARN_E_INVALID,
            "window: a descriptor of %d bytes: it has %d at most: use a shorter namespace or path", n + 18,
            TARN_DESCRIPTOR_MAX);
    snprintf(text + n, TARN_DESCRIPTOR_MAX - (size_t)n, " %016" PRIx64, check_of(text, (size_t)n));
    return 0;
}

/* --- parsing ------------------------------------------------------------------------------------ */

struct fields {
    const char *at;
    bool failed;
};

/* The next field, to be copied to `out` of that size. */
static void take(struct fields *f, char *out, size_t out_bytes)
{
    size_t bytes = strcspn(f->at, " ");
    f->failed |= bytes == 0 || bytes >= out_bytes;
    if (f->failed)
        return;
    memcpy(out, f->at, bytes);
    out[bytes] = '\0';
    f->at += bytes + (f->at[bytes] == ' ');
}

static uint64_t take_u64(struct fields *f, int base, uint64_t max)
{
    char text[24];
    uint64_t value = 0;
    take(f, text, sizeof(text));
    f->failed = f->failed || tarn_u64_parse(text, strlen(text), base, max, &value);
    return value;
}

/* One of two words: is it the second? */
static bool take_word(struct fields *f, const char *first, const char *second)
{
    char text[8];
    take(f, text, sizeof(text));
    f->failed = f->failed || (strcmp(text, first) && strcmp(text, second));
    return !f->failed && !strcmp(text, second);
}

static int check(const char *text)
{
    const char *last = strrchr(text, ' ');
    uint64_t given;
    if (strnlen(text, TARN_DESCRIPTOR_MAX) >= TARN_DESCRIPTOR_MAX || !last || strlen(last + 1) != 16 ||
        tarn_u64_parse(last + 1, 16, 16, UINT64_MAX, &given) ||
        given != check_of(text, (size_t)(last - text)))
        return tarn_fail(TARN_E_INVALID,
                         "window: the descriptor was cut or altered: pass it on as the lender got it");
    return 0;
}

static bool is_hex(const char *text)
{
    return strspn(text, "0123456789abcdef") == strlen(text);
}

int tarn_descriptor_parse(const char *text, struct tarn_descriptor *d)
{
    struct fields f = {.at = text};
    char word[16], version[16];
    take(&f, word, sizeof(word));
    take(&f, version, sizeof(version));
    if (f.failed || strcmp(word, "tarn-window"))
        return tarn_fail(TARN_E_INVALID,
                         "window: \"%.40s\" is no descriptor: give one, or the name of a lease", text);
    if (strcmp(version, VERSION))
        return tarn_fail(TARN_E_VERSION,
                         "window: a descriptor of version %s, not " VERSION
                         ": run the same version of tarn on "
                         "both sides",
                         version);
    int rc = check(text);
    if (rc)
        return rc;
    *d = (struct tarn_descriptor){0};
    take(&f, d->ns, sizeof(d->ns));
    take(&f, d->address, sizeof(d->address));
    take(&f, d->unix_path, sizeof(d->unix_path));
    take(&f, d->host_id, sizeof(d->host_id));
    d->epoch = take_u64(&f, 16, UINT64_MAX);
    d->window = (uint32_t)take_u64(&f, 10, TARN_WINDOWS_MAX - 1);
    d->slot = (uint32_t)take_u64(&f, 10, UINT32_MAX);
    d->gen = take_u64(&f, 16, UINT64_MAX);
    d->bytes = take_u64(&f, 10, UINT64_MAX);
    d->gpu = take_word(&f, "cpu", "gpu");
    d->write = take_word(&f, "r", "rw");
    take(&f, d->token, sizeof(d->token));
    if (!f.failed && !strcmp(d->unix_path, "-"))
        d->unix_path[0] = '\0';
    if (f.failed || strlen(d->token) != TARN_WINDOW_TOKEN || !is_hex(d->token))
        return tarn_fail(TARN_E_INVALID,
                         "window: the descriptor is malformed: pass it on as the lender got it");
    return 0;
}
