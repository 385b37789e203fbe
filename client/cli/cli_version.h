/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of software and models of NICs, as machines tell them. */
#ifndef TARN_CLIENT_CLI_VERSION_H
#define TARN_CLIENT_CLI_VERSION_H

#include <stdbool.h>

/* Is the first "N.N" or "N" in the text this version or a later one? False: there is none. */
bool cli_version_reaches(const char *text, unsigned major, unsigned minor);

/* "ConnectX-7", by the PCI ids of a NIC of NVIDIA or Mellanox; NULL: not known. *generation: 7, say; of a
 * BlueField that of the ConnectX in it. */
const char *cli_nic_model(unsigned vendor, unsigned device, int *generation);

#endif
