/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the plugin's NICs serves which GPU, by their places in sysfs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "transport/tcpx/plugin/tcpx_nic.h"

#define ROOT "/sys/devices/pci0000:"

/* a3-highgpu-8g: four switches, each with two GPUs and a NIC. */
#define SWITCH0 ROOT "00/0000:00:04.0/0000:02:00.0/0000:03:"
#define SWITCH1 ROOT "00/0000:00:05.0/0000:08:00.0/0000:09:"
#define SWITCH2 ROOT "80/0000:80:04.0/0000:82:00.0/0000:83:"
#define SWITCH3 ROOT "80/0000:80:05.0/0000:88:00.0/0000:89:"
static const char *const a3_gpus[] = {
    SWITCH0 "00.0/0000:04:00.0", SWITCH0 "01.0/0000:05:00.0", SWITCH1 "00.0/0000:0a:00.0",
    SWITCH1 "01.0/0000:0b:00.0", SWITCH2 "00.0/0000:84:00.0", SWITCH2 "01.0/0000:85:00.0",
    SWITCH3 "00.0/0000:8a:00.0", SWITCH3 "01.0/0000:8b:00.0",
};
static const char *const a3_nics[] = {
    SWITCH0 "02.0/0000:06:00.0",
    SWITCH1 "02.0/0000:0c:00.0",
    SWITCH2 "02.0/0000:86:00.0",
    SWITCH3 "02.0/0000:8c:00.0",
};

static void check(const char *const *nics, int nnics, const char *const *gpus, int ngpus, const int *awaited)
{
    for (int i = 0; i < ngpus; i++) {
        int nic = tarn_tcpx_nearest(nics, nnics, gpus, ngpus, i);
        if (nic != awaited[i])
            fail_msg("GPU %d (%s): device %d, awaited %d", i, gpus[i], nic, awaited[i]);
    }
}

static void a_gpu_has_the_nic_of_its_switch(void **state)
{
    static const int awaited[] = {0, 0, 1, 1, 2, 2, 3, 3};
    (void)state;
    check(a3_nics, 4, a3_gpus, 8, awaited);
}

/* The plugin lists NICs in the order of its setting, and CUDA_VISIBLE_DEVICES orders GPUs. */
static void the_order_does_not_matter(void **state)
{
    const char *const nics[] = {a3_nics[2], a3_nics[0], a3_nics[3], a3_nics[1]};
    const char *const gpus[] = {a3_gpus[7], a3_gpus[0], a3_gpus[4]};
    static const int awaited[] = {2, 1, 0};
    (void)state;
    check(nics, 4, gpus, 3, awaited);
    check(nics, 4, gpus + 1, 1, awaited + 1);
}

/* Eight NICs: two at each switch, one for each of its GPUs. */
static void gpus_share_equally_near_nics(void **state)
{
    static const char *const nics[] = {
        SWITCH0 "02.0/0000:06:00.0", SWITCH1 "02.0/0000:0c:00.0", SWITCH2 "02.0/0000:86:00.0",
        SWITCH3 "02.0/0000:8c:00.0", SWITCH0 "03.0/0000:07:00.0", SWITCH1 "03.0/0000:0d:00.0",
        SWITCH2 "03.0/0000:87:00.0", SWITCH3 "03.0/0000:8d:00.0",
    };
    static const int awaited[] = {0, 4, 1, 5, 2, 6, 3, 7};
    (void)state;
    check(nics, 8, a3_gpus, 8, awaited);
}

/* If no switch has both, a NIC at the same root is nearer than one at another root. */
static void the_root_counts_where_no_switch_is_shared(void **state)
{
    static const char *const nics[] = {ROOT "80/0000:80:09.0", ROOT "00/0000:00:09.0"};
    static const int awaited[] = {1, 1, 1, 1, 0, 0, 0, 0};
    (void)state;
    check(nics, 2, a3_gpus, 8, awaited);
}

static void unknown_places_are_assigned_in_order(void **state)
{
    static const char *const unknown[] = {"", "", "", "", "", "", "", ""};
    static const int all[] = {0, 0, 1, 1, 2, 2, 3, 3}, first[] = {0, 0, 0, 0};
    static const char *const elsewhere[] = {ROOT "c0/0000:c0:01.0", ROOT "c0/0000:c0:02.0"};
    (void)state;
    check(a3_nics, 4, unknown, 8, all);
    check(unknown, 4, a3_gpus, 8, all);
    check(unknown, 1, a3_gpus, 4, first);
    check(a3_nics, 4, elsewhere, 2, (const int[]){0, 2});
}

/* A name may be a prefix of another name. */
static void whole_names_are_compared(void **state)
{
    static const char *const nics[] = {ROOT "00/0000:0a/0000:01", ROOT "00/0000:0a:00.0/0000:01"};
    static const char *const gpus[] = {ROOT "00/0000:0a:00.0/0000:02", ROOT "00/0000:0a/0000:02"};
    (void)state;
    check(nics, 2, gpus, 2, (const int[]){1, 0});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_has_the_nic_of_its_switch),
        cmocka_unit_test(the_order_does_not_matter),
        cmocka_unit_test(gpus_share_equally_near_nics),
        cmocka_unit_test(the_root_counts_where_no_switch_is_shared),
        cmocka_unit_test(unknown_places_are_assigned_in_order),
        cmocka_unit_test(whole_names_are_compared),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
