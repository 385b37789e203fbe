/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text and back; text.h has the rules. */
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"

/* How much of a bad text a sentence shows. */
#define SHOWN(bytes_) ((int)((bytes_) < 40 ? (bytes_) : 40))

/* --- shapes ------------------------------------------------------------------------------------- */

char *tarn_u64_format(uint64_t v, char *out)
{
    char text[20], *at = text + sizeof text;

    do
        *--at = (char)('0' + v % 10);
    while (v /= 10);
    size_t n = (size_t)(text + sizeof text - at);
    memcpy(out, at, n);
    out[n] = '\0';
    return out + n;
}

char *tarn_gen_format(uint64_t gen, char *out)
{
    for (int i = 0; i < 16; i++)
        out[i] = "0123456789abcdef"[gen >> (60 - 4 * i) & 15];
    out[16] = '\0';
    return out + 16;
}

void tarn_shape_format(const struct tarn_tensor *t, char out[TARN_SHAPE_TEXT])
{
    uint32_t ndim = t->ndim < TARN_DIMS_MAX ? t->ndim : TARN_DIMS_MAX;

    out[0] = '\0';
    for (uint32_t i = 0; i < ndim; i++) {
        if (i > 0)
            *out++ = ',';
        out = tarn_u64_format(t->shape[i], out);
    }
}

int tarn_shape_parse(const char *text, size_t bytes, struct tarn_tensor *t)
{
    uint64_t shape[TARN_DIMS_MAX] = {0};
    uint32_t ndim = 0;
    const char *end = text + bytes;

    for (const char *at = text; bytes; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if (ndim == TARN_DIMS_MAX)
            return tarn_fail(TARN_E_INVALID, "shape \"%.*s\" has more than %d dimensions", SHOWN(bytes), text,
                             TARN_DIMS_MAX);
        if (tarn_u64_parse(at, (size_t)(stop - at), 10, UINT64_MAX, &shape[ndim]) != 0)
            return tarn_fail(TARN_E_INVALID, "shape \"%.*s\" is no list of numbers like 32,128", SHOWN(bytes),
                             text);
        ndim++;
        if (!comma)
            break;
        at = comma;
    }
    t->ndim = ndim;
    memcpy(t->shape, shape, sizeof shape);
    return 0;
}

/* --- numbers ------------------------------------------------------------------------------------ */

/* The value of a digit of base 16; 16 when c is none. */
static unsigned digit_value(char c)
{
    unsigned digit = (unsigned char)c - (unsigned)'0';

    if (digit <= 9)
        return digit;
    digit = ((unsigned char)c | 0x20u) - 'a';
    return digit < 6 ? digit + 10 : 16;
}

/* Inlined for each base: numbers are half of what it takes to read a record. */
static inline bool parse_digits(const char *text, size_t bytes, unsigned base, uint64_t *out)
{
    bool long_one = bytes > (base == 10 ? 19 : 16); /* a shorter one fits into 64 bits */
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++) {
        unsigned digit = digit_value(text[i]);
        if (digit >= base || (long_one && value > (UINT64_MAX - digit) / base))
            return false;
        value = value * base + digit;
    }
    *out = value;
    return bytes > 0;
}

int tarn_u64_parse(const char *text, size_t bytes, int base, uint64_t max, uint64_t *out)
{
    uint64_t value;
    bool ok = base == 10 ? parse_digits(text, bytes, 10, &value) : parse_digits(text, bytes, 16, &value);

    if (!ok || value > max)
        return TARN_E_INVALID;
    *out = value;
    return 0;
}

/* The factor of "K", "KB", "KiB", "", "B" ...; 0 for anything else. */
static uint64_t unit_factor(const char *unit)
{
    static const char letters[] = "KMGTP";
    uint64_t factor = 1;
    const char *letter = *unit ? strchr(letters, *unit >= 'a' ? *unit - 'a' + 'A' : *unit) : NULL;

    if (letter) {
        factor = 1ull << (10 * (letter - letters + 1));
        unit++;
        if (*unit == 'i')
            return strcmp(unit, "iB") == 0 ? factor : 0;
    }
    return *unit == '\0' || strcmp(unit, "B") == 0 ? factor : 0;
}

int tarn_size_parse(const char *text, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    size_t decimals = text[digits] == '.' ? strspn(text + digits + 1, "0123456789") : 0;
    const char *unit = text + digits + (decimals ? decimals + 1 : 0);
    uint64_t factor = unit_factor(unit), whole = 0, part = 0, scale = 1;

    if (digits == 0 || factor == 0 || decimals > 3 || (decimals && factor == 1))
        return tarn_fail(TARN_E_INVALID, "\"%.40s\" is no size: write one like 4096, 64K, 1.5G or 2T", text);
    for (size_t i = 0; i < decimals; i++, scale *= 10)
        part = part * 10 + digit_value(text[digits + 1 + i]);
    if (tarn_u64_parse(text, digits, 10, UINT64_MAX, &whole) != 0 ||
        __builtin_mul_overflow(whole, factor, &whole) ||
        __builtin_add_overflow(whole, part * factor / scale, &whole))
        return tarn_fail(TARN_E_INVALID, "size \"%.40s\" is more than 2^64 bytes: give a smaller one", text);
    *out = whole;
    return 0;
}

void tarn_size_format(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    /* The bound is the first value that would be printed as "1024". */
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 16, "%.1f", value);
    char *point_zero = strstr(out, ".0");
    snprintf(point_zero ? point_zero : out + strlen(out), 8, " %s", units[unit]);
}

uint64_t tarn_random64(void)
{
    uint64_t value = 0;

    while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
        if (errno == EINTR)
            continue;
        /* Without getrandom, in a sandbox: unique on this host must do. */
        uint64_t seed[3] = {tarn_now_ns(), (uint64_t)getpid(), (uint64_t)(uintptr_t)&value};
        value = tarn_hash(seed, sizeof seed, tarn_unix_ms());
        break;
    }
    return value ? value : 1;
}

int tarn_secret_make(char out[TARN_SECRET_TEXT])
{
    uint64_t half[2];

    if (getrandom(half, sizeof half, 0) != (ssize_t)sizeof half)
        return tarn_fail(TARN_E_SYSTEM, "a random secret: getrandom: %m");
    snprintf(out, TARN_SECRET_TEXT, "%016" PRIx64 "%016" PRIx64, half[0], half[1]);
    return 0;
}

/* --- keys --------------------------------------------------------------------------------------- */

static bool stays_itself(unsigned char c)
{
    return c > 0x20 && c < 0x7f && c != '%';
}

int tarn_key_escape(const struct tarn_key *key, char *out, size_t out_bytes)
{
    static const char hex[] = "0123456789ABCDEF";
    const unsigned char *in = key ? key->data : NULL;
    size_t n = 0;

    if (!in)
        return tarn_fail(TARN_E_INVALID, "key: NULL: pass 1 to %d bytes", TARN_KEY_MAX);
    if (key->bytes == 0 || key->bytes > TARN_KEY_MAX)
        return tarn_fail(TARN_E_INVALID, "key: %zu bytes long: must be 1 to %d", key->bytes, TARN_KEY_MAX);
    for (size_t i = 0; i < key->bytes; i++) {
        size_t takes = stays_itself(in[i]) ? 1 : 3;
        if (n + takes >= out_bytes)
            return tarn_fail(TARN_E_INVALID, "key: its text does not fit into %zu bytes: give %zu", out_bytes,
                             3 * key->bytes + 1);
        if (takes == 1) {
            out[n++] = (char)in[i];
        } else {
            out[n++] = '%';
            out[n++] = hex[in[i] >> 4];
            out[n++] = hex[in[i] & 15];
        }
    }
    out[n] = '\0';
    return (int)n;
}

/* Reads one byte of an escaped key. Returns the length of its text; 0: tarn_key_escape() writes no such text.
 */
static size_t unescape_one(const char *text, unsigned char *byte)
{
    if (*text != '%') {
        *byte = (unsigned char)*text;
        return stays_itself(*byte) ? 1 : 0;
    }
    uint64_t value = 0;
    if (tarn_u64_parse(text + 1, 2, 16, UINT8_MAX, &value) || text[1] >= 'a' || text[2] >= 'a')
        return 0;
    *byte = (unsigned char)value;
    return stays_itself(*byte) ? 0 : 3;
}

/* Accepts only what tarn_key_escape() writes, so a key has exactly one text. */
int tarn_key_unescape(const char *text, void *out, size_t out_bytes)
{
    unsigned char *bytes = out;
    size_t n = 0;

    if (!text)
        return tarn_fail(TARN_E_INVALID, "key: NULL: pass its text");
    for (const char *at = text; *at;) {
        unsigned char byte = 0;
        size_t taken = unescape_one(at, &byte);
        if (taken == 0)
            return tarn_fail(
                TARN_E_INVALID,
                "key \"%.40s\": bad at byte %zu: white space, control and non-ASCII bytes and %% "
                "are written %%XX (upper case), all others as themselves",
                text, (size_t)(at - text));
        if (n == TARN_KEY_MAX)
            return tarn_fail(TARN_E_INVALID, "key \"%.40s...\" is longer than %d bytes: give a shorter one",
                             text, TARN_KEY_MAX);
        if (n + 1 >= out_bytes)
            return tarn_fail(TARN_E_INVALID, "key \"%.40s\" does not fit into %zu bytes: give %d", text,
                             out_bytes, TARN_KEY_MAX + 1);
        bytes[n++] = byte;
        at += taken;
    }
    if (n == 0)
        return tarn_fail(TARN_E_INVALID, "key: empty: must be 1 to %d bytes", TARN_KEY_MAX);
    bytes[n] = '\0';
    return (int)n;
}

/* --- near names --------------------------------------------------------------------------------- */

#define WORD_MAX 64

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein distance; both words are at most WORD_MAX long. */
static size_t edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t row[WORD_MAX + 1];

    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t above = row[j];
            row[j] = least(diagonal + (a[i - 1] != b[j - 1]), least(row[j - 1], above) + 1);
            diagonal = above;
        }
    }
    return row[b_len];
}

const char *tarn_nearest(const char *word, const char *const *names, size_t n)
{
    size_t len = strnlen(word, WORD_MAX + 1);
    /* A short word may differ less, or "xy" would be near "ls". Of two names at the same distance the one of
     * the word's length wins: letters are swapped more often than dropped. */
    size_t limit = 2 * least(3, (len + 1) / 2) + 1;
    const char *nearest = NULL;

    for (size_t i = 0; len <= WORD_MAX && i < n; i++) {
        size_t name_len = strlen(names[i]);
        if (name_len > WORD_MAX)
            continue;
        size_t apart = 2 * edit_distance(word, len, names[i], name_len) + (name_len != len);
        if (apart <= limit) {
            nearest = names[i];
            if (apart == 0)
                break;
            limit = apart - 1;
        }
    }
    return nearest;
}
