/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of tarnd: one table (options.c) makes flags, environment, file, help and manual page. */
#ifndef TARN_SERVER_OPTIONS_H
#define TARN_SERVER_OPTIONS_H

#include <stdbool.h>

#include "base/option/option_table.h"
#include "server/store/store.h"

struct tarn_node_config {
    char *config, *id, *listen, *unix_path, *redis, *ns, *secret, *admin_secret, *unix_mode, *unix_group,
        *transports, *http, *log_level, *rdma_devices, *state_dir;
    char *tcpx_plugin, *tcpx_unpack_impl, *when_cut_off, *eviction;
    struct tarn_option_list pools;
    int64_t data_port, io_threads;
    int64_t redis_timeout_ms, heartbeat_ms, scrub_s, drain_timeout_ms;
    uint64_t session_reserved_max, rdma_region_bytes;
    bool print_conf, help, version, man, markdown;
    char *completion;
};

extern const struct tarn_program tarn_node_program;

/*
 * "cpu0:bytes=1G,huge=1,slots=N,align=N" or "gpu0:device=0,bytes=64G" as a pool. CONFIG with a sentence
 * naming the text.
 */
int tarn_pool_options_parse(const char *text, struct tarn_pool_options *o);
/* CONFIG unless text is error, warn, info or debug. */
int tarn_log_level_parse(const char *where, const char *text, enum tarn_log_level *level);
/* An octal number; CONFIG unless the owner may read and write. */
int tarn_unix_mode_parse(const char *text, unsigned *mode);
/* Checks what the table's bounds do not: names, levels, an address that can be
 * published. */
int tarn_node_config_check(const struct tarn_node_config *c);

#endif
