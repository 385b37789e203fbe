/* SPDX-License-Identifier: Apache-2.0 */
/* What doctor makes of versions and of NICs' ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "client/cli/cli_version.h"

static void versions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned major, minor;
        bool reaches;
    } cases[] = {
        {"535.104.05", 535, 0, true},
        {"525.60.13", 535, 0, false},
        {"5.15.0-91-generic", 5, 15, true},
        {"5.4.0", 5, 15, false},
        {"6.1.0", 5, 15, true},
        {"5.9-0.5.6", 5, 9, true},
        {"5.8-1.0.1", 5, 9, false},
        {"5.10-0.1", 5, 9, true},
        {"MLNX_OFED_LINUX-5.8-2.0.3.0", 5, 9, false},
        {"MLNX_OFED_LINUX-23.10-0.5.5.0", 5, 9, true},
        {"OFED-internal-24.04-0.6.6", 5, 9, true},
        {"580", 535, 0, true},
        {"5.", 5, 1, false},
        {"unknown", 0, 0, false},
        {"", 0, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (cli_version_reaches(cases[i].text, cases[i].major, cases[i].minor) != cases[i].reaches)
            fail_msg("\"%s\" for %u.%u", cases[i].text, cases[i].major, cases[i].minor);
}

static void nics(void **state)
{
    (void)state;
    static const struct {
        unsigned vendor, device;
        const char *model;
        int generation;
    } cases[] = {
        {0x15b3, 0x1013, "ConnectX-4", 4},  {0x15b3, 0x1016, "ConnectX-4 Lx", 4},
        {0x15b3, 0x1017, "ConnectX-5", 5},  {0x15b3, 0x101e, "ConnectX-6 Dx", 6},
        {0x15b3, 0x1021, "ConnectX-7", 7},  {0x15b3, 0x1031, "later than ConnectX-8", 9},
        {0x15b3, 0xa2d6, "BlueField-2", 6},
    };
    static const unsigned unknown[][2] = {{0, 0}, {0x15b3, 0x1003}, {0x15b3, 0xffff}, {0x8086, 0x1017}};
    int generation = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_string_equal(cli_nic_model(cases[i].vendor, cases[i].device, &generation), cases[i].model);
        assert_int_equal(generation, cases[i].generation);
    }
    generation = -1;
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        assert_null(cli_nic_model(unknown[i][0], unknown[i][1], &generation));
    assert_int_equal(generation, -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions),
        cmocka_unit_test(nics),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
