/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked into every test program. TEST_FILTER=put in the environment runs only the tests with this in their
 * names ('*': any characters, '?': one). tests/run.sh fails if no test matches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void filter(void)
{
    const char *pattern = getenv("TEST_FILTER");
    static char anywhere[256]; /* static, because cmocka keeps the pointer */
    if (!pattern || !*pattern)
        return;
    snprintf(anywhere, sizeof(anywhere), "*%s*", pattern);
    cmocka_set_test_filter(anywhere);
}
