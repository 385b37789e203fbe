/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads, both asleep while all is well:
 *
 *   watcher  polls one idle control connection of each node. When it ends, the node's process has ended, and
 *            its descriptors are void from that moment. It does nothing else, so it sees the end within
 *            microseconds.
 *   keeper   asks nodes that were set aside (with back-off) or are doubted; reads the node table while
 * something is missing; closes retired links; reads late replies (late_reply.h); repeats owed commands
 *            (owed_command.h); ends queued operations that are out of time; has idle links send what they put
 *            off. Suspects come first, since calls wait for its word on them; then doubted nodes, since calls
 *            still try them.
 */
#ifndef TARN_CLIENT_MONITOR_H
#define TARN_CLIENT_MONITOR_H

struct tarn_client;

int tarn_monitor_start(struct tarn_client *c);
void tarn_monitor_stop(struct tarn_client *c);

#endif
