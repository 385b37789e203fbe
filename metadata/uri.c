/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis URIs, as redis-cli -u takes them:
 *   redis://[[user]:password@]host[:port][/db]
 *   unix://[[user]:password@]/path[?db=N]
 * User information without a colon is a password. User, password and path may have %XX escapes.
 * No sentence made here has any part of the user information in it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/error.h"
#include "base/text.h"
#include "metadata/redis.h"

#define DEFAULT_URI "redis://127.0.0.1:6379"
#define FORMS "use redis://[user:password@]host[:port][/db] or unix:///path[?db=N]"

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

/* Without an @ the text may be user and password alone, and is not shown. */
static int parse_tcp(const char *text, bool login, struct tarn_redis_uri *u)
{
    char where[300];
    size_t n = strcspn(text, "/?");
    const char *bracket = memchr(text, ']', n);
    bool port = memchr(bracket ? bracket : text, ':', n - (size_t)(bracket ? bracket - text : 0)) != NULL;
    if (n == 0 || n > sizeof u->addr.host)
        return tarn_fail(TARN_E_CONFIG, "redis uri: no host in it: " FORMS);
    if (text[n] == '?')
        return tarn_fail(TARN_E_CONFIG, "redis uri: a ? behind the host: " FORMS);
    snprintf(where, sizeof where, "%.*s%s", (int)n, text, port ? "" : ":6379");
    if (tarn_addr_parse(where, "redis uri", &u->addr))
        return login ? tarn_fail(TARN_E_CONFIG, "redis uri: '%s' is no host and port: " FORMS, where)
                     : tarn_fail(TARN_E_CONFIG, "redis uri: no host and port behind ://: " FORMS);
    return text[n] ? parse_db(text + n + 1, strlen(text + n + 1), u) : 0;
}

static int parse(const char *text, struct tarn_redis_uri *u)
{
    bool is_unix = !strncmp(text, "unix://", 7);
    if (!is_unix && strncmp(text, "redis://", 8)) {
        const char *scheme_end = strstr(text, "://"); /* without one, the text may be a password */
        int n = scheme_end && scheme_end - text < 20 ? (int)(scheme_end - text) : 0;
        return tarn_fail(TARN_E_CONFIG, "redis uri: the scheme '%.*s' is not one that tarn speaks: " FORMS, n,
                         text);
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

int tarn_redis_uri_parse(const char *text, struct tarn_redis_uri *u)
{
    memset(u, 0, sizeof *u);
    int rc = parse(text && *text ? text : DEFAULT_URI, u);
    if (rc) {
        tarn_redis_uri_free(u);
        return rc;
    }
    char addr[sizeof u->address - 16];
    tarn_addr_format(&u->addr, addr, sizeof addr); /* "host:port" or "unix:/path" */
    if (u->addr.is_unix)
        snprintf(u->address, sizeof u->address, "unix://%s", u->addr.host);
    else
        snprintf(u->address, sizeof u->address, "redis://%s", addr);
    return 0;
}

void tarn_redis_uri_free(struct tarn_redis_uri *u)
{
    free(u->user);
    if (u->password)
        explicit_bzero(u->password, strlen(u->password));
    free(u->password);
    u->user = u->password = NULL;
}
