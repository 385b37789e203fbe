/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network between processes of one host whose links can be cut, held up and slowed down. It consists of
 * relays of TCP connections, one for each pair of processes, all run by one thread.
 *
 *   struct router *r = router_start(1);
 *   struct relay *x = router_add(r, "127.0.0.1:0", redis->address);
 *   ... a client of relay_address(x) ...
 *   relay_set(x, &(struct relay_state){.delay_ms = 50});    a round trip takes 100 ms
 *   relay_set(x, &(struct relay_state){.cut = RELAY_BOTH}); nothing passes
 *   relay_set(x, NULL);                                     as at first; held bytes pass now
 *   router_stop(r);
 *
 * Clients take a node's address from the directory. A program linked with -Wl,--wrap=connect (LDFLAGS_test_x
 * in the Makefile) can send such connections through a relay with router_route().
 *
 * Errors in the set-up fail the running cmocka test. Functions may be called from any thread.
 */
#ifndef TARN_TESTS_ROUTER_H
#define TARN_TESTS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

struct router;
struct relay;

enum { RELAY_UP = 1, RELAY_DOWN = 2, RELAY_BOTH = 3 }; /* up: from client to server */

/*
 * The state of a link.
 *
 * cut       These directions pass nothing, not even the end of a connection. connect() waits, as with a
 *           firewall that drops packets. Held bytes pass later.
 * reset     Connections are closed with RST, including new ones.
 * delay_ms  In each direction. A new connection's first bytes take one more round trip, for the handshake;
 *           connect() itself returns at once.
 * loss      Percent of segments lost. A lost segment arrives 200 ms later (or 400, 800 ...), and so does
 *           everything after it.
 */
struct relay_state {
    unsigned cut;
    bool reset;
    uint32_t delay_ms;
    uint32_t loss;
};

/* The seed determines the random losses. */
struct router *router_start(uint64_t seed);
/* fork() at a moment at which the router's thread holds no lock of malloc: the address sanitizer's malloc of
 * a child waits forever for such a lock. The child must not use the router. */
pid_t router_fork(struct router *r);
/* Closes all connections, and ends the routes to its relays. NULL is allowed. */
void router_stop(struct router *r);

/* Listens at `listen_at` ("127.0.0.1:0": any port) and connects to `to`. Both are numeric "host:port". */
struct relay *router_add(struct router *r, const char *listen_at, const char *to);
/* "host:port", valid until router_stop(). */
const char *relay_address(const struct relay *x);
/* NULL: forwards everything at once. */
void relay_set(struct relay *x, const struct relay_state *state);
/* relay_connections(): the number of open connections. relay_bytes(): the bytes forwarded. */
uint32_t relay_connections(struct relay *x);
uint64_t relay_bytes(struct relay *x);

/* --- for programs linked with -Wl,--wrap=connect ------------------------------------------------ */

/* From now on, this process's connections to `from` go to `to`. Replaces an earlier route. Both are
 * numeric "host:port". */
void router_route(const char *from, const char *to);
/* Refuses this process's connections to Unix sockets, so that nodes of this host look remote. */
void router_no_unix(bool on);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes);

#endif
