/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture's settings and counters, and helpers for all its parts. */
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/tcpx/fixture.h"

struct fixture_options fixture_options = {.devices = 1,
                                          .version = TARN_TCPX_UNPACK_VERSION,
                                          .pci = 1,
                                          .seed = 1,
                                          .cut_min = 1,
                                          .cut_max = FIXTURE_PAGE,
                                          .pages = 16384};
static struct fixture_counters own_counters;
struct fixture_counters *fixture_count = &own_counters;
tarn_tcpx_log_fn fixture_log;

#define OPTION(name_) \
    { \
#name_, offsetof(struct fixture_options, name_) \
    }
static const struct {
    const char *name;
    size_t offset;
} known[] = {
    OPTION(init),         /* what init() returns */
    OPTION(devices),      /* number of devices (1) */
    OPTION(plain),        /* 1: device type 0; the plugin places receives, in host memory */
    OPTION(version),      /* version of the unpacking (7) */
    OPTION(pci),          /* 0: devices have no PCI path, and registering GPU memory crashes */
    OPTION(gpu),          /* 1: bounce memory is on the GPU that is current in accept() */
    OPTION(seed),         /* for cuts, orders and sockets (1) */
    OPTION(cut_min),      /* least bytes of a fragment (1) */
    OPTION(cut_max),      /* most bytes of a fragment (4096) */
    OPTION(pages),        /* bounce pages of a comm (16384) */
    OPTION(setup_ms),     /* connect() and accept() are not ready for this long (0: for one call) */
    OPTION(delay_ms),     /* delay of every receive */
    OPTION(send_error),   /* test() of this send returns 3 */
    OPTION(send_hang),    /* this send arrives, but test() never says done */
    OPTION(send_more),    /* this send has 64 bytes more than the caller gave */
    OPTION(send_exit),    /* exit(1) in this isend() */
    OPTION(send_close),   /* the sender closes at this isend() */
    OPTION(drop_after),   /* sends after this one end without error but never arrive */
    OPTION(helper_error), /* a data socket breaks at this isend(): both ends only write a line to the log */
    OPTION(recv_error),   /* test() of this receive returns 3 */
    OPTION(recv_deaf),    /* 1: a receiver does not notice that the sender is gone */
    OPTION(recv_hang),    /* test() of this receive never says done */
    OPTION(recv_exit),    /* exit(1) in this irecv() */
    OPTION(recv_close),   /* the receiver closes at this irecv() */
    OPTION(close_ms),     /* with posted receives closeRecv() takes this long, then writes once more to all of
                             them */
    OPTION(bad_dst),      /* the list of this receive leads outside of the message */
    OPTION(bad_src),      /* the list leads outside of the bounce memory */
    OPTION(bad_sum),      /* the list lacks a byte */
    OPTION(bad_count),    /* the list has too many fragments */
    OPTION(bad_bytes),    /* this receive brings zeros */
    OPTION(init_exit),    /* 1: exit(1) in init() */
    OPTION(init_hang),    /* 1: init() does not return */
    OPTION(accept_error), /* accept() returns this, as without RxDM */
    OPTION(reg_error),    /* this regMr() returns 3, as without DMA buffers */
    /* variants that the ABI allows */
    OPTION(accept_blocks),  /* 1: accept() blocks until the peer has connected */
    OPTION(connect_blocks), /* 1: connect() blocks until the peer has accepted */
    OPTION(isend_ms),       /* isend() sends and then takes this long */
    OPTION(listen_ms),      /* the first listen() of the process takes this long */
    OPTION(
        map_unguarded), /* 1: the first accept maps bounce memory; if two race, both map and the last wins */
    OPTION(late_table), /* 1: the table has only name and init before init() */
    OPTION(
        tell_sizes), /* 1: test() sets sizes, and returns 3 if more came than was posted; 2: it sets sizes */
    OPTION(null_requests), /* every n-th isend() or irecv() returns no request: try again */
};
#undef OPTION

_Noreturn void fixture_crash(const char *why)
{
    fprintf(stderr, "tcpx fixture: crash: %s\n", why);
    raise(SIGSEGV);
    _exit(139);
}

_Noreturn void fixture_exit(const char *why)
{
    fprintf(stderr, "tcpx fixture: exit: %s\n", why);
    exit(1);
}

uint64_t fixture_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t fixture_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * 0x2545f4914f6cdd1dull) >> 16;
}

static void set_option(const char *name, const char *value)
{
    char *end = NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0 && value) {
            uint64_t v = strtoull(value, &end, 0);
            if (end == value || *end)
                break;
            *(uint64_t *)((char *)&fixture_options + known[i].offset) = v;
            return;
        }
    fixture_crash("TCPX_FIXTURE has a name that is not known, or no number");
}

/* Reads a number as the plugin does: a missing or invalid one gives the default. */
static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end = NULL;
    uint64_t v = text ? strtoull(text, &end, 0) : otherwise;
    return text && (end == text || *end) ? otherwise : v;
}

bool fixture_has_no_room(void)
{
    static _Atomic uint64_t asked;
    return fixture_options.null_requests && ++asked % fixture_options.null_requests == 0;
}

static void map_counters(void)
{
    const char *path = getenv("TCPX_FIXTURE_COUNTERS");
    if (!path)
        return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*fixture_count)))
        fixture_crash("TCPX_FIXTURE_COUNTERS cannot be written");
    void *map = mmap(NULL, sizeof(*fixture_count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        fixture_crash("TCPX_FIXTURE_COUNTERS cannot be mapped");
    fixture_count = map;
}

void fixture_read_options(void)
{
    struct fixture_options *o = &fixture_options;
    const char *text = getenv("TCPX_FIXTURE");
    char copy[768], *rest = copy, *word;
    snprintf(copy, sizeof(copy), "%s", text ? text : "");
    while ((word = strsep(&rest, ",")))
        if (*word) {
            char *value = strchr(word, '=');
            if (value)
                *value++ = '\0';
            set_option(word, value);
        }
    o->cut_max = o->cut_max > FIXTURE_PAGE ? FIXTURE_PAGE : o->cut_max;
    if (o->cut_min == 0 || o->cut_min > o->cut_max)
        fixture_crash("TCPX_FIXTURE: cut_min is not in 1..cut_max");

    /* The plugin's real default is 0, not the documented 128 KiB. */
    o->chunk = number_of("NCCL_DYNAMIC_CHUNK_SIZE", 0);
    o->sockets = number_of("NCCL_SOCKET_NTHREADS", 1) * number_of("NCCL_NSOCKS_PERTHREAD", 1);
    o->sockets = o->sockets < 1 ? 1 : o->sockets > FIXTURE_SOCKETS ? FIXTURE_SOCKETS : o->sockets;
    map_counters();
}
