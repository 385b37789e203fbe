/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of data connections: every digit counts, and a token is valid only for its own session. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "transport/node_tokens.h"

enum { A = 1, B = 2 };

static void every_digit_counts(void **state)
{
    struct tarn_token *all = NULL;
    char given[TARN_TOKEN + 1];

    (void)state;
    assert_int_equal(strlen(tarn_token_of(&all, A)), TARN_TOKEN);
    for (int i = 0; i < TARN_TOKEN; i++) {
        memcpy(given, tarn_token_of(&all, A), sizeof given);
        assert_true(tarn_token_is(all, A, given));
        for (int bit = 0; bit < 8; bit++) {
            given[i] ^= (char)(1 << bit);
            assert_false(tarn_token_is(all, A, given));
            given[i] ^= (char)(1 << bit);
        }
    }
    memset(given, 0, sizeof given);
    assert_false(tarn_token_is(all, A, given));
    tarn_tokens_free(&all);
}

static void a_token_is_good_for_its_living_session(void **state)
{
    struct tarn_token *all = NULL;
    char a[TARN_TOKEN + 1], b[TARN_TOKEN + 1];

    (void)state;
    memcpy(a, tarn_token_of(&all, A), sizeof a);
    memcpy(b, tarn_token_of(&all, B), sizeof b);
    assert_string_not_equal(a, b);
    assert_string_equal(tarn_token_of(&all, A), a); /* the same for all connections of the session */
    assert_false(tarn_token_is(all, B, a));
    assert_false(tarn_token_is(all, A, b));
    tarn_token_drop(&all, A);
    assert_false(tarn_token_is(all, A, a));
    assert_true(tarn_token_is(all, B, b));
    assert_string_not_equal(tarn_token_of(&all, A), a);
    tarn_tokens_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_digit_counts),
        cmocka_unit_test(a_token_is_good_for_its_living_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
