/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of RDMA devices, described for people. */
#ifndef TARN_CLIENT_CLI_RDMA_H
#define TARN_CLIENT_CLI_RDMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cli_rdma_port {
    char name[80]; /* "mlx5_0:1" */
    char state[24], link[24], rate[48];
    bool active;
    bool used; /* tarn uses the port; the fields below are set only then */
    uint32_t mtu, gid_index;
    char gid[48];
};
typedef void (*cli_rdma_fn)(void *arg, const struct cli_rdma_port *p);
/* Calls fn for each port and returns the number of ports. `why`: why tarn can use none. */
int cli_rdma_ports(struct tarn_reason *why, cli_rdma_fn fn, void *arg);
/* "ACTIVE, Ethernet, 100 Gb/sec (4X EDR), MTU 4096, GID 3 ::ffff:10.0.0.1" */
void cli_rdma_port_text(const struct cli_rdma_port *p, char *out, size_t bytes);

#endif
