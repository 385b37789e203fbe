/* SPDX-License-Identifier: Apache-2.0 */
/* Put sessions: layer-wise puts. */
#ifndef TARN_CLIENT_PUT_SESSION_H
#define TARN_CLIENT_PUT_SESSION_H

struct tarn_client;

/* At close: aborts the open put sessions. */
void tarn_put_sessions_close(struct tarn_client *c);

#endif
