/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RESP on both sides. The client talks to a scripted peer on a Unix socket (a thread of this program). The
 * node's parser gets its bytes in all possible pieces, and also malformed requests.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/resp/resp.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))
#define LATE_MS 30000 /* generous: only a hang fails */

/* --- a peer ------------------------------------------------------------------------------------- */

typedef void (*script_fn)(int fd, void *arg);

struct peer {
    char folder[64];
    struct tarn_addr addr;
    int listener;
    pthread_t thread;
    script_fn script;
    void *arg;
};

static void *peer_main(void *arg)
{
    struct peer *p = arg;

    if (tarn_net_wait(p->listener, POLLIN, tarn_deadline(LATE_MS), NULL) == 0) {
        int fd = accept(p->listener, NULL, NULL); /* blocking, for simple scripts */
        p->script(fd, p->arg);
        close(fd);
    }
    return NULL;
}

static void peer_start(struct peer *p, script_fn script, void *arg)
{
    char text[128];

    *p = (struct peer){.script = script, .arg = arg};
    snprintf(p->folder, sizeof p->folder, "/tmp/tarn-resp-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(text, sizeof text, "unix:%s/socket", p->folder);
    assert_int_equal(tarn_addr_parse(text, "test", &p->addr), 0);
    assert_int_equal(tarn_net_listen(&p->addr, &p->listener), 0);
    assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
}

/* Call after the thread was joined. */
static void peer_clear(struct peer *p)
{
    close(p->listener);
    unlink(p->addr.host);
    rmdir(p->folder);
}

static void peer_join(struct peer *p)
{
    pthread_join(p->thread, NULL);
    peer_clear(p);
}

static struct tarn_resp *client_of(struct peer *p)
{
    struct tarn_resp *r = NULL;
    assert_int_equal(tarn_resp_connect(&p->addr, tarn_deadline(LATE_MS), NULL, &r), 0);
    return r;
}

static int ping(struct tarn_resp *r, uint64_t deadline_ns, redisReply **reply_p)
{
    return tarn_resp_call(r, deadline_ns, tarn_resp_command(r, "PING", NULL), reply_p);
}

static void write_all(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        data += n;
        bytes -= (size_t)n;
    }
}

static void say(int fd, const char *text)
{
    write_all(fd, text, strlen(text));
}

/* Answers every request with the array of its arguments, until the client closes. */
static void echo(int fd, void *arg)
{
    struct tarn_resp_parser *p = tarn_resp_parser_new(1 << 20, 1024);
    struct tarn_buf out = {0};
    char in[10000];
    ssize_t n;
    int rc = 0;

    (void)arg;
    while (rc == 0 && (n = recv(fd, in, sizeof in, 0)) > 0) {
        redisReply *q = NULL;
        rc = tarn_resp_parser_feed(p, in, (size_t)n);
        while (rc == 0 && (rc = tarn_resp_parser_next(p, &q)) == 0 && q) {
            tarn_resp_add_array(&out, q->elements);
            for (size_t i = 0; i < q->elements; i++)
                tarn_resp_add_string(&out, q->element[i]->str, (size_t)q->element[i]->len);
        }
        if (rc != 0)
            tarn_resp_add_error(&out, rc, tarn_last_error());
        write_all(fd, out.data, out.bytes);
        out.bytes = 0;
    }
    tarn_buf_free(&out);
    tarn_resp_parser_free(p);
}

/* --- the client --------------------------------------------------------------------------------- */

static void arguments_are_binary_safe(void **state)
{
    const char *texts[] = {"PUT", "a\r\n\0b", "", "$5\r\n"};
    const size_t lens[] = {3, 5, 0, 4};
    struct peer p;
    redisReply *reply = NULL;

    (void)state;
    peer_start(&p, echo, NULL);
    struct tarn_resp *r = client_of(&p);
    assert_false(tarn_resp_dead(r));
    struct tarn_command *c = tarn_resp_command(r, NULL);
    for (int i = 0; i < 4; i++)
        tarn_command_add(c, texts[i], lens[i]);
    assert_int_equal(tarn_resp_call(r, tarn_deadline(LATE_MS), c, &reply), 0);
    assert_int_equal(reply->elements, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(reply->element[i]->len, lens[i]);
        assert_memory_equal(reply->element[i]->str, texts[i], lens[i]);
    }
    assert_false(tarn_resp_dead(r));
    freeReplyObject(reply);
    tarn_resp_free(r);
    peer_join(&p);
}

static void expect_echo(struct tarn_resp *r, size_t n, const char *const *texts, const size_t *lens)
{
    redisReply *reply = NULL;

    assert_int_equal(tarn_resp_read(r, tarn_deadline(LATE_MS), NULL, &reply), 0);
    assert_int_equal(reply->elements, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(reply->element[i]->len, lens[i]);
        assert_memory_equal(reply->element[i]->str, texts[i], lens[i]);
    }
    freeReplyObject(reply);
}

static void commands_are_built(void **state)
{
    const char *texts[] = {"PUT", "r", "18446744073709551615", "00000000000000ff", "a\r\n\0b", ""};
    const size_t lens[] = {3, 1, 20, 16, 5, 0};
    struct tarn_command own = {.n = 0};
    struct peer p;

    (void)state;
    peer_start(&p, echo, NULL);
    struct tarn_resp *r = client_of(&p);
    struct tarn_command *c = tarn_resp_command(r, "PUT", "r", NULL);
    for (int i = 0; i < 2; i++) { /* the connection's own command, then another one, sent twice */
        tarn_command_u64(c, UINT64_MAX);
        tarn_command_gen(c, 255);
        tarn_command_add(c, texts[4], lens[4]);
        tarn_command_str(c, "");
        for (int k = 0; k <= i; k++) {
            assert_int_equal(tarn_resp_append_command(r, c), 0);
            expect_echo(r, 6, texts, lens);
        }
        c = &own;
        tarn_command_strs(c, "PUT", "r", NULL);
    }
    tarn_command_free(&own);
    assert_int_equal(tarn_resp_append_strs(r, "PUT", NULL), 0); /* the earlier arguments are gone */
    expect_echo(r, 1, texts, lens);
    tarn_resp_free(r);
    peer_join(&p);
}

/* A command that lacks an argument must not be sent. */
static void command_without_memory(void **state)
{
    const char *texts[] = {"PING"};
    const size_t lens[] = {4};
    struct peer p;

    (void)state;
    peer_start(&p, echo, NULL);
    struct tarn_resp *r = client_of(&p);
    struct tarn_command *c = tarn_resp_command(r, "PUT", NULL);
    c->strings.failed = true;
    tarn_command_str(c, "value");
    assert_int_equal(tarn_resp_append_command(r, c), TARN_E_NO_MEMORY);
    assert_int_equal(tarn_resp_append_strs(r, "PING", NULL), 0);
    expect_echo(r, 1, texts, lens);
    tarn_resp_free(r);
    peer_join(&p);
}

/* More than both sockets hold in both directions: the client must write on while it reads replies. */
static void long_pipeline_does_not_dead_lock(void **state)
{
    enum { commands = 20000 };
    char value[1000], number[16];
    struct peer p;

    (void)state;
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    peer_start(&p, echo, NULL);
    struct tarn_resp *r = client_of(&p);
    for (int i = 0; i < commands; i++) {
        snprintf(number, sizeof number, "%d", i);
        assert_int_equal(tarn_resp_append_strs(r, "ECHO", number, value, NULL), 0);
    }
    for (int i = 0; i < commands; i++) {
        redisReply *reply = NULL;
        assert_int_equal(tarn_resp_read(r, tarn_deadline(LATE_MS), NULL, &reply), 0);
        snprintf(number, sizeof number, "%d", i);
        assert_string_equal(reply->element[1]->str, number);
        assert_int_equal(reply->element[2]->len, sizeof value - 1);
        freeReplyObject(reply);
    }
    assert_false(tarn_resp_dead(r));
    tarn_resp_free(r);
    peer_join(&p);
}

static void large_reply(void **state)
{
    const size_t bytes = 900 * 1000;
    char *value = malloc(bytes);
    struct peer p;

    (void)state;
    for (size_t i = 0; i < bytes; i++)
        value[i] = (char)(i * 2654435761u >> 13);
    peer_start(&p, echo, NULL);
    struct tarn_resp *r = client_of(&p);
    for (int i = 0; i < 3; i++) {
        struct tarn_command *c = tarn_resp_command(r, "ECHO", NULL);
        redisReply *reply = NULL;
        tarn_command_add(c, value, bytes);
        assert_int_equal(tarn_resp_call(r, tarn_deadline(LATE_MS), c, &reply), 0);
        assert_int_equal(reply->element[1]->len, bytes);
        assert_memory_equal(reply->element[1]->str, value, bytes);
        freeReplyObject(reply);
    }
    tarn_resp_free(r);
    peer_join(&p);
    free(value);
}

/* Waits for the client to close, so that the peer's own close never comes first. */
static void wait_for_close(int fd)
{
    char byte;
    while (recv(fd, &byte, 1, 0) > 0)
        ;
}

static void say_and_wait(int fd, void *arg)
{
    say(fd, arg);
    wait_for_close(fd);
}

static void silence_ends_at_the_deadline(void **state)
{
    struct peer p;
    redisReply *reply = NULL;

    (void)state;
    peer_start(&p, say_and_wait, "$100\r\nhalf a repl");
    struct tarn_resp *r = client_of(&p);
    assert_int_equal(ping(r, tarn_deadline(30), &reply), TARN_E_TIMEOUT);
    assert_non_null(strstr(tarn_last_error(), p.addr.host));
    assert_null(reply);
    assert_true(tarn_resp_dead(r));
    tarn_resp_free(r);
    peer_join(&p);
}

/* Sends as much of a long reply as the sockets hold, and reports that through a pipe. */
static void fill_sockets(int fd, void *arg)
{
    static const char header[] = "$99999999999\r\n";
    const int *told = arg;
    char bytes[16384];

    memset(bytes, 'x', sizeof bytes);
    write_all(fd, header, sizeof header - 1);
    while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(write(told[1], "", 1), 1);
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
}

/* The deadline holds even while bytes keep coming: a peer could send for ever. */
static void endless_reply_ends_at_the_deadline(void **state)
{
    int told[2], left = 0;
    struct peer p;
    redisReply *reply = NULL;
    char byte;

    (void)state;
    assert_int_equal(pipe(told), 0);
    peer_start(&p, fill_sockets, told);
    struct tarn_resp *r = client_of(&p);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(ping(r, tarn_now_ns(), &reply), TARN_E_TIMEOUT);
    assert_int_equal(ioctl(tarn_resp_fd(r), FIONREAD, &left), 0);
    assert_int_not_equal(left, 0);
    assert_true(tarn_resp_dead(r));
    tarn_resp_free(r);
    peer_join(&p);
    close(told[0]);
    close(told[1]);
}

static void replies_that_are_not_resp_are_refused(void **state)
{
    static const char *const bad[] = {"HTTP/1.1 400 Bad Request\r\n\r\n", ":12x\r\n", "$-5\r\n",
                                      "*1\r\n!\r\n"};

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct peer p;
        redisReply *reply = NULL;
        peer_start(&p, say_and_wait, (void *)(uintptr_t)bad[i]);
        struct tarn_resp *r = client_of(&p);
        assert_int_equal(ping(r, tarn_deadline(LATE_MS), &reply), TARN_E_PROTOCOL);
        assert_non_null(strstr(tarn_last_error(), p.addr.host));
        assert_true(tarn_resp_dead(r));
        tarn_resp_free(r);
        peer_join(&p);
    }
}

static void say_and_close(int fd, void *arg)
{
    say(fd, arg);
}

static void a_closed_connection_is_node_down(void **state)
{
    struct peer p;
    redisReply *reply = NULL;

    (void)state;
    peer_start(&p, say_and_close, "*2\r\n+half");
    struct tarn_resp *r = client_of(&p);
    pthread_join(p.thread, NULL);
    assert_int_equal(ping(r, tarn_deadline(LATE_MS), &reply), TARN_E_NODE_DOWN);
    assert_int_equal(ping(r, tarn_deadline(LATE_MS), &reply), TARN_E_NODE_DOWN);
    assert_true(tarn_resp_dead(r));
    tarn_resp_free(r);
    peer_clear(&p);
}

/* Beyond maxclients Redis sends the reason and closes, before any request. */
static void a_reason_sent_before_closing_is_read(void **state)
{
    struct peer p;
    redisReply *reply = NULL;

    (void)state;
    peer_start(&p, say_and_close, "-ERR max number of clients reached\r\n");
    struct tarn_resp *r = client_of(&p);
    pthread_join(p.thread, NULL);
    assert_true(tarn_resp_dead(r));
    assert_int_equal(ping(r, tarn_deadline(LATE_MS), &reply), 0);
    assert_string_equal(reply->str, "ERR max number of clients reached");
    freeReplyObject(reply);
    tarn_resp_free(r);
    peer_clear(&p);
}

static void unrequested_bytes_make_a_connection_dead(void **state)
{
    struct peer p;

    (void)state;
    peer_start(&p, say_and_wait, "+hello\r\n");
    struct tarn_resp *r = client_of(&p);
    assert_int_equal(tarn_net_wait(tarn_resp_fd(r), POLLIN, tarn_deadline(LATE_MS), NULL), 0);
    assert_true(tarn_resp_dead(r));
    tarn_resp_free(r);
    peer_join(&p);
}

/* --- descriptors -------------------------------------------------------------------------------- */

static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void send_fds(int fd, const char *text, const int *fds, int n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 100)];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)n);
    sendmsg(fd, &m, MSG_NOSIGNAL);
}

/* Gives two messages: one with one descriptor (pipe_end), then one with `second` copies of it. */
struct giver {
    int pipe_end;
    int second;
};

static void give_fds(int fd, void *arg)
{
    struct giver *g = arg;
    int many[100];

    for (int i = 0; i < 100; i++)
        many[i] = g->pipe_end;
    send_fds(fd, "+fi", many, 1);
    send_fds(fd, "rst\r\n+second\r\n", many, g->second);
    wait_for_close(fd);
}

static void descriptors_travel(void **state)
{
    struct peer p;
    redisReply *reply = NULL;
    int pipes[2], fds[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, before = open_fds();
    char byte = 0;

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    peer_start(&p, give_fds, &(struct giver){pipes[1], 5});
    struct tarn_resp *r = client_of(&p);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ping(r, tarn_deadline(LATE_MS), &reply), 0);
        assert_string_equal(reply->str, i ? "second" : "first");
        freeReplyObject(reply);
    }
    assert_int_equal(tarn_resp_take_fds(r, fds, 2), 2);
    assert_int_equal(tarn_resp_take_fds(r, fds + 2, 2), 2);
    for (int i = 0; i < 4; i++) {
        assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
        assert_int_equal(write(fds[i], "x", 1), 1);
        assert_int_equal(read(pipes[0], &byte, 1), 1);
        close(fds[i]);
    }
    tarn_resp_free(r); /* closes the two that were not taken */
    peer_join(&p);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(open_fds(), before);
}

static void too_many_descriptors(void **state)
{
    static const int second[] = {TARN_RESP_FDS_MAX, 90};

    (void)state;
    for (size_t i = 0; i < COUNT(second); i++) {
        struct peer p;
        int pipes[2], before = open_fds(), rc = 0;
        assert_int_equal(pipe(pipes), 0);
        peer_start(&p, give_fds, &(struct giver){pipes[1], second[i]});
        struct tarn_resp *r = client_of(&p);
        for (int j = 0; j < 2 && rc == 0; j++) {
            redisReply *reply = NULL;
            rc = ping(r, tarn_deadline(LATE_MS), &reply);
            if (rc == 0)
                freeReplyObject(reply);
        }
        assert_int_equal(rc, TARN_E_PROTOCOL);
        tarn_resp_free(r);
        peer_join(&p);
        close(pipes[0]);
        close(pipes[1]);
        assert_int_equal(open_fds(), before);
    }
}

/* --- errors as replies -------------------------------------------------------------------------- */

static void error_replies(void **state)
{
    static const struct {
        const char *text;
        int type, code;
        const char *sentence;
    } rows[] = {
        {"EXISTS the key a is here", REDIS_REPLY_ERROR, TARN_E_EXISTS, "node n: the key a is here"},
        {"STALE", REDIS_REPLY_ERROR, TARN_E_STALE, "node n: the object has moved or was replaced"},
        {"NOAUTH Authentication required.", REDIS_REPLY_ERROR, TARN_E_DIRECTORY,
         "node n: NOAUTH Authentication required."},
        {"EXISTSNOT x", REDIS_REPLY_ERROR, TARN_E_DIRECTORY, "node n: EXISTSNOT x"},
        {"OK fine", REDIS_REPLY_ERROR, TARN_E_DIRECTORY, "node n: OK fine"},
        {"EXISTS not an error", REDIS_REPLY_STATUS, 0, NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        redisReply reply = {.type = rows[i].type, .str = (char *)(uintptr_t)rows[i].text};
        assert_int_equal(tarn_resp_error(&reply, "node n", TARN_E_DIRECTORY), rows[i].code);
        if (rows[i].sentence)
            assert_string_equal(tarn_last_error(), rows[i].sentence);
    }
}

static void replies_as_bytes(void **state)
{
    struct tarn_buf b = {0};

    (void)state;
    tarn_resp_add_simple(&b, "two\r\nlines");
    tarn_resp_add_error(&b, TARN_E_FULL, "no\nroom");
    tarn_resp_add_string(&b, "a\r\n", 3);
    tarn_resp_add_string(&b, "", 0);
    tarn_resp_add_integer(&b, INT64_MIN);
    tarn_resp_add_integer(&b, 0);
    tarn_resp_add_array(&b, 18);
    assert_string_equal(b.data, "+two  lines\r\n-FULL no room\r\n$3\r\na\r\n\r\n$0\r\n\r\n"
                                ":-9223372036854775808\r\n:0\r\n*18\r\n");
    tarn_buf_free(&b);
}

/* --- the node's parser -------------------------------------------------------------------------- */

#define MAX_BYTES 1000
#define MAX_ARGS 5

static const char stream[] = "*1\r\n$4\r\nPING\r\n"
                             "*0\r\n"
                             "*3\r\n$3\r\nPUT\r\n$5\r\na\r\n\0b\r\n$0\r\n\r\n"
                             "*5\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n$1\r\n5\r\n";

static redisReply *next_request(struct tarn_resp_parser *p)
{
    redisReply *q = NULL;
    assert_int_equal(tarn_resp_parser_next(p, &q), 0);
    return q;
}

/* Feeds `stream` in pieces. The three requests must come out whatever the pieces. */
static void feed_in_pieces(size_t (*piece)(void *arg), void *arg)
{
    struct tarn_resp_parser *p = tarn_resp_parser_new(MAX_BYTES, MAX_ARGS);
    size_t elements[8] = {0}, n = 0;

    for (size_t at = 0; at < sizeof stream - 1;) {
        size_t bytes = piece(arg);
        redisReply *q;
        bytes = bytes < sizeof stream - 1 - at ? bytes : sizeof stream - 1 - at;
        assert_int_equal(tarn_resp_parser_feed(p, stream + at, bytes), 0);
        at += bytes;
        while ((q = next_request(p))) {
            elements[n++] = q->elements;
            if (n == 2)
                assert_memory_equal(q->element[1]->str, "a\r\n\0b", 5);
        }
    }
    assert_int_equal(n, 3);
    assert_int_equal(elements[0], 1);
    assert_int_equal(elements[1], 3);
    assert_int_equal(elements[2], 5);
    tarn_resp_parser_free(p);
}

static size_t fixed_piece(void *arg)
{
    return *(size_t *)arg;
}

static size_t random_piece(void *arg)
{
    return 1 + (size_t)rand_r(arg) % 40;
}

static void requests_in_any_pieces(void **state)
{
    unsigned seed = (unsigned)tarn_now_ns();

    (void)state;
    for (size_t bytes = 1; bytes <= sizeof stream; bytes++)
        feed_in_pieces(fixed_piece, &bytes);
    print_message("seed %u\n", seed);
    for (int i = 0; i < 200; i++)
        feed_in_pieces(random_piece, &seed);
}

/* Feeds the data whole or byte by byte, and drops the requests. Returns the first failure, or 0. */
static int verdict(const char *data, size_t bytes, bool bytewise, size_t *requests)
{
    struct tarn_resp_parser *p = tarn_resp_parser_new(MAX_BYTES, MAX_ARGS);
    int rc = 0;

    *requests = 0;
    for (size_t at = 0; at < bytes && rc == 0;) {
        size_t n = bytewise ? 1 : bytes;
        redisReply *q = NULL;
        rc = tarn_resp_parser_feed(p, data + at, n);
        at += n;
        while (rc == 0 && (rc = tarn_resp_parser_next(p, &q)) == 0 && q)
            ++*requests;
    }
    if (rc != 0) { /* the failure is permanent */
        redisReply *q = NULL;
        assert_true(strlen(tarn_last_error()) > 5);
        assert_int_equal(tarn_resp_parser_feed(p, "*1\r\n$4\r\nPING\r\n", 14), 0);
        assert_int_equal(tarn_resp_parser_next(p, &q), rc);
        assert_null(q);
    }
    tarn_resp_parser_free(p);
    return rc;
}

static void malformed_requests_are_refused(void **state)
{
    static const char *const bad[] = {
        "PING\r\n",
        "GET / HTTP/1.1\r\n",
        "\r\n",
        "+OK\r\n",
        ":1\r\n",
        "$4\r\nPING\r\n",
        "-ERR\r\n",
        "*-1\r\n",
        "*-2\r\n",
        "*x\r\n",
        "*1x\r\n",
        "*\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n+PING\r\n",
        "*1\r\n-PING\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$-2\r\n",
        "*1\r\n$x\r\n",
        "*1\r\n*1\r\n$4\r\nPING\r\n",
        "*1\r\n*0\r\n",
        "*2\r\n$1\r\na\r\n%1\r\n",
        "*1\r\n,1.5\r\n",
        "*1\r\n#t\r\n",
        "*1\r\n_\r\n",
        "*6\r\n",
        "*2147483647\r\n",
        "*4294967297\r\n",
        "*99999999999999999999\r\n",
        "*1\r\n$1001\r\n",
        "*1\r\n$9223372036854775807\r\n",
        "*1\r\n$18446744073709551615\r\n",
        "*000000000000000000000000000000000000000000000",
        "*1\r\n$00000000000000000000000000000000000000000",
        "\0",
        "\x16\x03\x01\x02",
    };
    size_t requests;

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        size_t bytes = strlen(bad[i]) ? strlen(bad[i]) : 1;
        assert_int_equal(verdict(bad[i], bytes, false, &requests), TARN_E_PROTOCOL);
        assert_int_equal(verdict(bad[i], bytes, true, &requests), TARN_E_PROTOCOL);
        assert_int_equal(requests, 0);
    }
}

/* Two arguments of 480 bytes with their headers fit into MAX_BYTES, two of 500 do not. */
static size_t two_arguments(char *out, size_t room, int bytes)
{
    int n = snprintf(out, room, "*2\r\n$%d\r\n%0*d\r\n$%d\r\n%0*d\r\n", bytes, bytes, 0, bytes, bytes, 0);
    return (size_t)n;
}

static void limit_of_bytes(void **state)
{
    char data[20 * 1200];
    size_t requests, bytes = 0, one;

    (void)state;
    for (int bytewise = 0; bytewise < 2; bytewise++) {
        one = two_arguments(data, sizeof data, 480);
        assert_int_equal(verdict(data, one, bytewise, &requests), 0);
        assert_int_equal(requests, 1);
        one = two_arguments(data, sizeof data, 500);
        assert_int_equal(verdict(data, one, bytewise, &requests), TARN_E_PROTOCOL);
        assert_non_null(strstr(tarn_last_error(), "1000"));
        /* also refused before the request is complete */
        assert_int_equal(verdict(data, one - 10, bytewise, &requests), TARN_E_PROTOCOL);
    }
    /* The limit applies to each request, not to all bytes that arrive at once. */
    for (int i = 0; i < 20; i++)
        bytes += two_arguments(data + bytes, sizeof data - bytes, 480);
    assert_int_equal(verdict(data, bytes, false, &requests), 0);
    assert_int_equal(requests, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_are_binary_safe),
        cmocka_unit_test(commands_are_built),
        cmocka_unit_test(command_without_memory),
        cmocka_unit_test(long_pipeline_does_not_dead_lock),
        cmocka_unit_test(large_reply),
        cmocka_unit_test(silence_ends_at_the_deadline),
        cmocka_unit_test(endless_reply_ends_at_the_deadline),
        cmocka_unit_test(replies_that_are_not_resp_are_refused),
        cmocka_unit_test(a_closed_connection_is_node_down),
        cmocka_unit_test(a_reason_sent_before_closing_is_read),
        cmocka_unit_test(unrequested_bytes_make_a_connection_dead),
        cmocka_unit_test(descriptors_travel),
        cmocka_unit_test(too_many_descriptors),
        cmocka_unit_test(error_replies),
        cmocka_unit_test(replies_as_bytes),
        cmocka_unit_test(requests_in_any_pieces),
        cmocka_unit_test(malformed_requests_are_refused),
        cmocka_unit_test(limit_of_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
