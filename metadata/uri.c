/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis URIs. The first two are as redis-cli -u takes them, the third names sentinels and what they call the
 * primary:
 *   redis://[[user]:password@]host[:port][/db]
 *   unix://[[user]:password@]/path[?db=N]
 *   redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/name[/db]
 *                    [?sentinel_user=U][&sentinel_password=P]
 * User information without a colon is a password. User, password and path may have %XX escapes. Those before
 * the @ are Redis's; sentinels have their own.
 * An @ behind the ? is written %40, so that the last @ ends the login.
 * No sentence made here has any part of the user information in it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/error.h"
#include "base/text.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define DEFAULT_URI "redis://127.0.0.1:6379"
#define FORMS "use redis://[user:password@]host[:port][/db] or unix:///path[?db=N]"
#define SENTINEL_SCHEME "redis+sentinel://"
#define SENTINEL_FORM "use " SENTINEL_SCHEME "[user:password@]host[:port][,host[:port]...]/name[/db]"

/* Copies n bytes, with %XX decoded. */
static int decode(const char *text, size_t n, const char *what, char **out_p)
{
    char *out = malloc(n + 1), *o = out;
    if (!out)
        return tarn_fail(TARN_E_NO_MEMORY, "redis uri: %zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '%') {
            *o++ = text[i];
            continue;
        }
        uint64_t byte = 0;
        if (i + 2 >= n || tarn_u64_parse(text + i + 1, 2, 16, UINT8_MAX, &byte) || byte == 0) {
            free(out);
            return tarn_fail(TARN_E_CONFIG,
                             "redis uri: a %% in the %s is not followed by two hex digits: "
                             "write %%25 for a %% sign",
                             what);
        }
        *o++ = (char)byte;
        i += 2;
    }
    *o = '\0';
    *out_p = out;
    return 0;
}

static int parse_login(const char *text, size_t n, struct tarn_redis_uri *u)
{
    const char *colon = memchr(text, ':', n);
    if (colon && colon > text) {
        int rc = decode(text, (size_t)(colon - text), "user name", &u->user);
        if (rc)
            return rc;
    }
    const char *password = colon ? colon + 1 : text;
    if (!u->user && password == text + n)
        return 0;
    return decode(password, n - (size_t)(password - text), "password", &u->password);
}

static int parse_db(const char *text, size_t n, struct tarn_redis_uri *u)
{
    uint64_t db = 0;
    if (n && tarn_u64_parse(text, n, 10, 1000000, &db))
        return tarn_fail(TARN_E_CONFIG, "redis uri: '%.*s' is no database number: " FORMS, (int)n, text);
    u->db = (uint32_t)db;
    return 0;
}

static int parse_unix(const char *text, struct tarn_redis_uri *u)
{
    const char *end = text + strcspn(text, "?");
    char *path = NULL;
    int rc = decode(text, (size_t)(end - text), "path", &path);
    if (rc)
        return rc;
    if (path[0] != '/' || strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        rc = tarn_fail(TARN_E_CONFIG,
                       "redis uri: '%.100s' is no absolute path of a socket (at most 107 bytes): " FORMS,
                       path);
        goto free_path;
    }
    if (*end && strncmp(end, "?db=", 4)) {
        rc = tarn_fail(TARN_E_CONFIG, "redis uri: a ? behind the path that is no ?db=N: " FORMS);
        goto free_path;
    }
    u->addr.is_unix = true;
    snprintf(u->addr.host, sizeof u->addr.host, "%s", path);
    if (*end)
        rc = parse_db(end + 4, strlen(end + 4), u);
free_path:
    free(path);
    return rc;
}

/* "host[:port]"; an IPv6 host is in brackets. */
static int parse_host(const char *text, size_t n, const char *port, struct tarn_addr *a)
{
    char where[sizeof a->host + 16];
    const char *bracket = memchr(text, ']', n);
    size_t host = bracket ? (size_t)(bracket - text) : 0;
    bool has_port = memchr(text + host, ':', n - host);
    if (n == 0 || n + sizeof ":65535" > sizeof where)
        return TARN_E_INVALID;
    snprintf(where, sizeof where, "%.*s%s%s", (int)n, text, has_port ? "" : ":", has_port ? "" : port);
    int rc = tarn_addr_parse(where, "redis uri", a);
    /* "unix:6379" is a path there */
    return a->is_unix || strpbrk(a->host, "[]") ? TARN_E_INVALID : rc;
}

/* Without an @ the text may be user and password alone, and is not shown. */
static int parse_tcp(const char *text, bool login, struct tarn_redis_uri *u)
{
    size_t n = strcspn(text, "/?");
    if (n == 0)
        return tarn_fail(TARN_E_CONFIG, "redis uri: no host in it: " FORMS);
    if (text[n] == '?')
        return tarn_fail(TARN_E_CONFIG, "redis uri: a ? behind the host: " FORMS);
    if (parse_host(text, n, "6379", &u->addr))
        return login ? tarn_fail(TARN_E_CONFIG, "redis uri: '%.*s' is no host and port: " FORMS,
                                 n < 300 ? (int)n : 300, text)
                     : tarn_fail(TARN_E_CONFIG, "redis uri: no host and port behind ://: " FORMS);
    return text[n] ? parse_db(text + n + 1, strlen(text + n + 1), u) : 0;
}

/* --- sentinels ---------------------------------------------------------------------------------- */

/* "host[:port],host[:port]...". `login`: the text cannot be user and password, and may be shown. */
static int parse_hosts(const char *text, size_t n, bool login, struct tarn_sentinels *s)
{
    for (const char *at = text, *end = text + n; at <= end && s->n < TARN_SENTINELS_MAX;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t bytes = (size_t)((comma ? comma : end) - at);
        if (parse_host(at, bytes, "26379", &s->addrs[s->n]))
            return login ? tarn_fail(TARN_E_CONFIG,
                                     "redis uri: '%.*s' is no sentinel's host and port: " SENTINEL_FORM,
                                     bytes < 300 ? (int)bytes : 300, at)
                         : tarn_fail(TARN_E_CONFIG,
                                     "redis uri: no sentinel's host and port behind ://: " SENTINEL_FORM);
        s->n++;
        if (!comma)
            return 0;
        at = comma + 1;
    }
    return tarn_fail(TARN_E_CONFIG, "redis uri: more than %d sentinels: name fewer of them",
                     TARN_SENTINELS_MAX);
}

/* "/name[/db]" */
static int parse_name(const char *text, size_t n, struct tarn_redis_uri *u)
{
    const char *slash = n ? memchr(text + 1, '/', n - 1) : NULL;
    size_t bytes = n ? (size_t)((slash ? slash : text + n) - text) - 1 : 0;
    if (!bytes || !tarn_name_valid(text + 1, bytes, sizeof u->sentinels.name - 1))
        return tarn_fail(TARN_E_CONFIG,
                         "redis uri: no name of a primary behind the sentinels (SENTINEL MASTERS lists "
                         "them; at most %zu of A-Z a-z 0-9 . _ -): " SENTINEL_FORM,
                         sizeof u->sentinels.name - 1);
    memcpy(u->sentinels.name, text + 1, bytes);
    return slash ? parse_db(slash + 1, (size_t)(text + n - slash) - 1, u) : 0;
}

/* "sentinel_user=U&sentinel_password=P" */
static int parse_sentinel_login(const char *text, struct tarn_sentinels *s)
{
    const struct {
        const char *name;
        char **value;
    } words[] = {{"sentinel_user=", &s->user}, {"sentinel_password=", &s->password}};
    while (*text) {
        size_t n = strcspn(text, "&"), i = 0;
        while (i < 2 && strncmp(text, words[i].name, strlen(words[i].name)))
            i++;
        if (i == 2 || *words[i].value)
            return tarn_fail(TARN_E_CONFIG, "redis uri: behind the ? is something else than sentinel_user= "
                                            "and sentinel_password=, once each: correct it");
        size_t name = strlen(words[i].name);
        int rc = decode(text + name, n - name, words[i].name, words[i].value);
        if (rc)
            return rc;
        text += n + (text[n] == '&');
    }
    return s->user && !s->password
               ? tarn_fail(TARN_E_CONFIG,
                           "redis uri: a sentinel_user without a password: add &sentinel_password=")
               : 0;
}

static int parse_sentinel(const char *text, struct tarn_redis_uri *u)
{
    const char *at = strrchr(text, '@');
    if (at && memmem(text, (size_t)(at - text), "?sentinel_", 10))
        return tarn_fail(TARN_E_CONFIG, "redis uri: an @ behind the ?: write %%40 for an @ sign");
    int rc = at ? parse_login(text, (size_t)(at - text), u) : 0;
    text = at ? at + 1 : text;
    size_t n = strcspn(text, "?"), hosts = strcspn(text, "/?");
    if (!rc)
        rc = parse_hosts(text, hosts, at != NULL, &u->sentinels);
    if (!rc)
        rc = parse_name(text + hosts, n - hosts, u);
    return rc || !text[n] ? rc : parse_sentinel_login(text + n + 1, &u->sentinels);
}

/* False: it is longer than messages allow. */
static bool format_sentinels(const struct tarn_redis_uri *u, char *out, size_t bytes)
{
    const struct tarn_sentinels *s = &u->sentinels;
    char addr[sizeof u->addr.host + 16];
    size_t used = (size_t)snprintf(out, bytes, SENTINEL_SCHEME);
    for (unsigned i = 0; i < s->n && used < bytes; i++) {
        tarn_addr_format(&s->addrs[i], addr, sizeof addr);
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", i ? "," : "", addr);
    }
    if (used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, u->db ? "/%s/%u" : "/%s", s->name, u->db);
    return used < bytes;
}

/* --- all ---------------------------------------------------------------------------------------- */

static int parse(const char *text, struct tarn_redis_uri *u)
{
    if (!strncmp(text, SENTINEL_SCHEME, strlen(SENTINEL_SCHEME)))
        return parse_sentinel(text + strlen(SENTINEL_SCHEME), u);
    bool is_unix = !strncmp(text, "unix://", 7);
    if (!is_unix && strncmp(text, "redis://", 8)) {
        const char *scheme_end = strstr(text, "://"); /* without one, the text may be a password */
        int n = scheme_end && scheme_end - text < 20 ? (int)(scheme_end - text) : 0;
        return tarn_fail(TARN_E_CONFIG,
                         "redis uri: the scheme '%.*s' is not one that tarn speaks: " FORMS
                         ", or with Sentinel " SENTINEL_SCHEME "host[:port][,host...]/name",
                         n, text);
    }
    text += is_unix ? 7 : 8;
    const char *at = is_unix && *text == '/' ? NULL : strrchr(text, '@');
    if (at) {
        int rc = parse_login(text, (size_t)(at - text), u);
        if (rc)
            return rc;
        text = at + 1;
    }
    return is_unix ? parse_unix(text, u) : parse_tcp(text, at != NULL, u);
}

static int format(struct tarn_redis_uri *u)
{
    char addr[sizeof u->addr.host + 16];
    if (u->sentinels.n && !format_sentinels(u, u->address, sizeof u->address))
        return tarn_fail(TARN_E_CONFIG,
                         "redis uri: the addresses of its %u sentinels are too long: name fewer",
                         u->sentinels.n);
    if (u->sentinels.n)
        return 0;
    tarn_addr_format(&u->addr, addr, sizeof addr); /* "host:port" or "unix:/path" */
    if (u->addr.is_unix)
        snprintf(u->address, sizeof u->address, "unix://%s", u->addr.host);
    else
        snprintf(u->address, sizeof u->address, "redis://%s", addr);
    return 0;
}

int tarn_redis_uri_parse(const char *text, struct tarn_redis_uri *u)
{
    memset(u, 0, sizeof *u);
    int rc = parse(text && *text ? text : DEFAULT_URI, u);
    if (!rc)
        rc = format(u);
    if (rc)
        tarn_redis_uri_free(u);
    return rc;
}

static void free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

void tarn_redis_uri_free(struct tarn_redis_uri *u)
{
    free(u->user);
    free(u->sentinels.user);
    free_secret(u->password);
    free_secret(u->sentinels.password);
    u->user = u->password = u->sentinels.user = u->sentinels.password = NULL;
}
