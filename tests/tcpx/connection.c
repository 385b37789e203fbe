/* SPDX-License-Identifier: Apache-2.0 */
/* test_connection server [PORT] | client HOST [PORT]: only opens a connection of the plugin. */
#include "tests/tcpx/flow.h"

static int serve(struct flow *f)
{
    uint32_t n;
    return flow_accept(f) || flow_tell(f, FLOW_TELL_CONNECTED, 1) || flow_hear(f, FLOW_TELL_CONNECTED, &n)
               ? -1
               : 0;
}

static int call(struct flow *f)
{
    uint32_t n;
    return flow_connect(f) || flow_hear(f, FLOW_TELL_CONNECTED, &n) || flow_tell(f, FLOW_TELL_CONNECTED, 1)
               ? -1
               : 0;
}

int main(int argc, char **argv)
{
    return flow_main(argc, argv, "TCPX connection test", serve, call);
}
