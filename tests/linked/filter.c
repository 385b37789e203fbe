/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In every test program: TEST_FILTER=put in the environment runs only the tests that have this in their
 * names ('*' any characters, '?' one). tests/run.sh fails where there is none.
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
    static char anywhere[256]; /* cmocka keeps the pointer */
    if (!pattern || !*pattern)
        return;
    snprintf(anywhere, sizeof(anywhere), "*%s*", pattern);
    cmocka_set_test_filter(anywhere);
}
