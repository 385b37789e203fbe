/* SPDX-License-Identifier: Apache-2.0 */
/* Redis URIs: what they mean, and that no message has a password in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "metadata/redis.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))
#define SECRET "s3cret"

static const char *text_of(const char *text)
{
    return text ? text : "-";
}

/* "address user password db", and with sentinels "name user password". */
static void good_ones(void **state)
{
    static const struct {
        const char *uri, *means;
    } rows[] = {
        {"", "redis://127.0.0.1:6379 - - 0"},
        {"redis://h", "redis://h:6379 - - 0"},
        {"redis://:p@h:1/2", "redis://h:1 - p 2"},
        {"redis://p@h", "redis://h:6379 - p 0"},
        {"redis://u:p%40%2f@[::1]:5", "redis://[::1]:5 u p@/ 0"},
        {"redis://[::1]", "redis://[::1]:6379 - - 0"},
        {"unix:///a/b?db=3", "unix:///a/b - - 3"},
        {"redis+sentinel://h/m", "redis+sentinel://h:26379/m - - 0 m - -"},
        {"redis+sentinel://a:1,b,[::1]:3,[fe80::2]/my.name-1_/4",
         "redis+sentinel://a:1,b:26379,[::1]:3,[fe80::2]:26379/my.name-1_/4 - - 4 my.name-1_ - -"},
        {"redis+sentinel://u:p@/q@a,b/m", "redis+sentinel://a:26379,b:26379/m u p@/q 0 m - -"},
        {"redis+sentinel://p@a/m/", "redis+sentinel://a:26379/m - p 0 m - -"},
        {"redis+sentinel://a/m?sentinel_password=x%26%40", "redis+sentinel://a:26379/m - - 0 m - x&@"},
        {"redis+sentinel://:p@a/m/1?sentinel_password=x&sentinel_user=y",
         "redis+sentinel://a:26379/m/1 - p 1 m y x"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct tarn_redis_uri u;
        char means[512];
        if (tarn_redis_uri_parse(rows[i].uri, &u))
            fail_msg("%s: %s", rows[i].uri, tarn_last_error());
        int n = snprintf(means, sizeof means, "%s %s %s %u", u.address, text_of(u.user), text_of(u.password),
                         u.db);
        if (u.sentinels.n)
            snprintf(means + n, sizeof means - (size_t)n, " %s %s %s", u.sentinels.name,
                     text_of(u.sentinels.user), text_of(u.sentinels.password));
        assert_string_equal(means, rows[i].means);
        tarn_redis_uri_free(&u);
    }
}

static void sentinels_are_taken_one_by_one(void **state)
{
    struct tarn_redis_uri u;
    (void)state;
    assert_int_equal(tarn_redis_uri_parse("redis+sentinel://a:1,[::1]:2/m", &u), 0);
    assert_int_equal(u.sentinels.n, 2);
    assert_string_equal(u.sentinels.addrs[0].host, "a");
    assert_int_equal(u.sentinels.addrs[0].port, 1);
    assert_string_equal(u.sentinels.addrs[1].host, "::1");
    assert_int_equal(u.sentinels.addrs[1].port, 2);
    tarn_redis_uri_free(&u);
}

/* Each is CONFIG, says this, and shows no password. */
static void bad_ones(void **state)
{
    static const struct {
        const char *uri, *says;
    } rows[] = {
        {"http://x", "the scheme 'http'"},
        {SECRET, "the scheme ''"},
        {"redis://", "no host in it"},
        {"redis://" SECRET ":x", "no host and port behind"},
        {"redis://u:" SECRET "@h:x", "'h:x' is no host and port"},
        {"redis://u:" SECRET "%zz@h", "a % in the password"},
        {"redis://unix", "no host and port behind"},
        {"redis://h/x", "'x' is no database number"},
        {"redis+sentinel://", "no sentinel's host and port"},
        {"redis+sentinel:///m", "no sentinel's host and port"},
        {"redis+sentinel://" SECRET ":x/m", "no sentinel's host and port"},
        {"redis+sentinel://u:" SECRET "@a,,b/m", "'' is no sentinel's"},
        {"redis+sentinel://u:" SECRET "@a,b:99999/m", "'b:99999' is no sentinel's"},
        {"redis+sentinel://[::1/m", "no sentinel's host and port"},
        {"redis+sentinel://a,unix/m", "no sentinel's host and port"},
        {"redis+sentinel://a", "no name of a primary"},
        {"redis+sentinel://a/", "no name of a primary"},
        {"redis+sentinel://a//1", "no name of a primary"},
        {"redis+sentinel://" SECRET "/m m", "no name of a primary"},
        {"redis+sentinel://a/m/x", "'x' is no database number"},
        {"redis+sentinel://a/m?db=1", "something else than sentinel_user="},
        {"redis+sentinel://a/m?" SECRET, "something else than sentinel_user="},
        {"redis+sentinel://a/m?sentinel_password=" SECRET "&sentinel_password=" SECRET, "once each"},
        {"redis+sentinel://a/m?sentinel_user=" SECRET, "a sentinel_user without a password"},
        {"redis+sentinel://a/m?sentinel_password=" SECRET "%4", "is not followed by two hex digits"},
        {"redis+sentinel://a/m?sentinel_password=" SECRET "@" SECRET, "write %40"},
        {"redis+sentinel://a,b,c,d,e,f,g,h,i/m", "more than 8 sentinels"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct tarn_redis_uri u;
        assert_int_equal(tarn_redis_uri_parse(rows[i].uri, &u), TARN_E_CONFIG);
        if (!strstr(tarn_last_error(), rows[i].says) || strstr(tarn_last_error(), SECRET))
            fail_msg("%s: %s", rows[i].uri, tarn_last_error());
    }
}

static void too_long_ones(void **state)
{
    struct tarn_redis_uri u;
    char uri[2200] = "redis+sentinel://", host[252];
    (void)state;
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    strcat(strcat(uri, host), "/m");
    assert_int_equal(tarn_redis_uri_parse(uri, &u), 0);
    tarn_redis_uri_free(&u);
    snprintf(uri, sizeof uri, "redis+sentinel://%s,%s/m", host, host);
    assert_int_equal(tarn_redis_uri_parse(uri, &u), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "too long"));
    snprintf(uri, sizeof uri, "redis+sentinel://a/%.64s", host);
    assert_int_equal(tarn_redis_uri_parse(uri, &u), TARN_E_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_ones),
        cmocka_unit_test(sentinels_are_taken_one_by_one),
        cmocka_unit_test(bad_ones),
        cmocka_unit_test(too_long_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
