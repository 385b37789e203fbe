/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A put whose rdma link broke. Writes by its queue pair at the node must have ended before the bytes go into
 * the same extent by another way, and before the extent is given back. Node and verbs are in this process
 * (node_here.h, fake_verbs.h). Control commands go through a relay that can hold DETACH.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "client/client.h"
#include "client/patience.h"
#include "tests/node_client.h"
#include "tests/node_here.h"
#include "tests/relay.h"
#include "tests/world.h"

#define SLACK_MS (1200 * harness_slower())

enum { BYTES = 300000, LONG_MS = 15000, SHORT_MS = 1200 };
/* Longer than a silent node is waited for if there is another node. */
enum { PATIENCE_MS = 3 * (int)(TARN_PATIENCE_NS / TARN_NS_PER_MS) };

static struct here here;
static struct tarn_client *client;
static struct relay *relay;
static atomic_int breaking; /* number of WRITEs that must still fail */

/* A put in another thread. */
static struct {
    pthread_t thread;
    bool running;
    char key[16];
    uint32_t timeout_ms;
    int status;
    atomic_bool ended;
    char error[300];
} putting;

static void end_putting(void);

/* The network lookup of a client's address: whether it is held, and how many wait. */
static struct {
    atomic_bool held;
    atomic_int asking;
} network;

/* Fails a WRITE while `breaking` is positive. Called with fake_lock held. */
static void break_writes(const struct ibv_send_wr *wr)
{
    bool now = wr->opcode == IBV_WR_RDMA_WRITE && atomic_load(&breaking) > 0;
    if (now)
        atomic_fetch_sub(&breaking, 1);
    fake.fail_far = now ? wr->wr.rdma.remote_addr : 0;
}

static void open_client(void)
{
    client =
        client_open(here.redis->url, (struct tarn_options){.transports = "rdma,tcp", .timeout_ms = LONG_MS});
}

static int start(void **state)
{
    (void)state;
    fake_reset();
    fake_add("a", 1);
    fake.before = break_writes;
    fake.fail_status = IBV_WC_RETRY_EXC_ERR;
    atomic_store(&breaking, 0);
    start_here(&here);
    relay = relay_start(harness_path(here.h, "here.sock"));
    open_client();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    atomic_store(&network.held, false);
    relay_hold(relay, NULL);
    end_putting();
    tarn_close(client);
    relay_stop(relay);
    stop_here(&here);
    assert_true(fake_goes_to(NULL, 0));
    return 0;
}

/* Queue pairs of the node: those to which nothing is posted. */
static int node_queue_pairs(void)
{
    int n = 0;
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < fake.nqps; i++)
        n += fake.qp[i] && fake.qp[i]->room == 1 && fake.qp[i]->state == IBV_QPS_RTS;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static long long reserved(void)
{
    return node_pool_figure(relay_node(relay), "reserved");
}

static int put_within(const char *key, uint32_t timeout_ms)
{
    struct tarn_put_options o = {.size = sizeof o, .timeout_ms = timeout_ms};
    return client_put(client, key, 'x', BYTES, &o);
}

static void *put_main(void *arg)
{
    (void)arg;
    putting.status = put_within(putting.key, putting.timeout_ms);
    snprintf(putting.error, sizeof putting.error, "%s", putting.status ? tarn_last_error() : "");
    atomic_store(&putting.ended, true);
    return NULL;
}

static void start_putting(const char *key, uint32_t timeout_ms)
{
    snprintf(putting.key, sizeof putting.key, "%s", key);
    putting.timeout_ms = timeout_ms;
    atomic_store(&putting.ended, false);
    atomic_store(&breaking, 1);
    assert_int_equal(pthread_create(&putting.thread, NULL, put_main, NULL), 0);
    putting.running = true;
}

static void end_putting(void)
{
    if (putting.running)
        pthread_join(putting.thread, NULL);
    putting.running = false;
}

/* Waits a while and checks that no command passes the held DETACH. */
static void nothing_passes_it(bool may_end)
{
    unsigned reserves = relay_passed(relay, "RESERVE");
    for (uint64_t until = harness_now_ms() + PATIENCE_MS; harness_now_ms() < until; harness_pause()) {
        assert_true(may_end || !atomic_load(&putting.ended));
        assert_int_equal(relay_passed(relay, "COMMIT"), 0);
        assert_int_equal(relay_passed(relay, "ABORT"), 0);
        assert_int_equal(relay_passed(relay, "RESERVE"), reserves);
    }
}

/* --- tests -------------------------------------------------------------------------------------- */

static void a_broken_put_leaves_no_queue_pair_at_the_node(void **state)
{
    (void)state;
    atomic_store(&breaking, 1);
    if (put_within("k", LONG_MS))
        fail_msg("put: %s", tarn_last_error());
    assert_int_equal(atomic_load(&breaking), 0);
    assert_int_equal(node_queue_pairs(), 0); /* the put continued by tcp */
    assert_int_equal(relay_passed(relay, "DETACH"), 1);
    assert_true(relay_when(relay, "DETACH", 1) < relay_when(relay, "COMMIT", 1));
    assert_int_equal(client_get(client, "k", 'x', BYTES), 0);
}

static void a_put_takes_another_way_after_the_nodes_answer(void **state)
{
    (void)state;
    relay_hold(relay, "DETACH");
    start_putting("k", LONG_MS);
    HARNESS_UNTIL(relay_held(relay, "DETACH") > 0, LONG_MS);
    nothing_passes_it(false);
    assert_int_equal(node_queue_pairs(), 1);
    relay_hold(relay, NULL);
    end_putting();
    if (putting.status)
        fail_msg("put: %s", putting.error);
    assert_int_equal(relay_passed(relay, "RESERVE"), 1); /* the same reservation */
    assert_int_equal(node_queue_pairs(), 0);
    assert_int_equal(client_get(client, "k", 'x', BYTES), 0);
}

/* The put ends in time. The node gets the extent back only when nothing can write to it any more. */
static void a_timed_out_put_returns_its_space_after_the_answer(void **state)
{
    (void)state;
    relay_hold(relay, "DETACH");
    uint64_t begun = harness_now_ms();
    start_putting("k", SHORT_MS);
    HARNESS_UNTIL(relay_held(relay, "DETACH") > 0, LONG_MS);
    nothing_passes_it(true);
    end_putting();
    assert_in_range(harness_now_ms() - begun, SHORT_MS - 50, SHORT_MS + SLACK_MS);
    assert_true(putting.status != 0);
    nothing_passes_it(true);
    assert_true(reserved() > 0);
    assert_int_equal(node_queue_pairs(), 1);
    relay_hold(relay, NULL);
    HARNESS_UNTIL(reserved() == 0, LONG_MS);
    assert_int_equal(node_queue_pairs(), 0);
    assert_true(relay_when(relay, "DETACH", 1) < relay_when(relay, "ABORT", 1));
    assert_int_equal(relay_passed(relay, "COMMIT"), 0);
    assert_int_equal(put_within("k", LONG_MS), 0);
}

/* The same for a put that the caller cancels. */
static void a_canceled_put_returns_its_space_after_the_answer(void **state)
{
    (void)state;
    char *data = calloc(1, BYTES);
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    struct tarn_completion done;
    tarn_op op;
    assert_non_null(data);
    relay_hold(relay, "DETACH");
    atomic_store(&breaking, 1);
    assert_int_equal(tarn_submit_put(client, &item, 1, NULL, 0, &op), 0);
    HARNESS_UNTIL(relay_held(relay, "DETACH") > 0, LONG_MS);
    assert_int_equal(tarn_cancel(client, op), 0);
    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_wait(client, op, LONG_MS, &done), 0);
    assert_true(harness_now_ms() - begun < SLACK_MS);
    assert_int_equal(done.status, TARN_E_CANCELED);
    nothing_passes_it(true);
    assert_true(reserved() > 0);
    relay_hold(relay, NULL);
    HARNESS_UNTIL(reserved() == 0, LONG_MS);
    assert_true(relay_when(relay, "DETACH", 1) < relay_when(relay, "ABORT", 1));
    free(data);
}

/* The session loses all its connections, so the node takes the reservation back and gives the extent to
 * another client. The session then begins again with a new link. */
static void a_put_session_without_its_reservation_writes_nothing(void **state)
{
    (void)state;
    char *data = calloc(1, BYTES);
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item item = {.key = key_of("mine"), .tensor = tarn_bytes(BYTES)};
    struct tarn_put_options o = {.size = sizeof o, .timeout_ms = LONG_MS};
    struct tarn_put_session *session;
    assert_non_null(data);
    assert_int_equal(tarn_put_begin(client, &item, 1, &o, &session), 0);
    relay_break(relay);
    HARNESS_UNTIL(reserved() == 0, LONG_MS);
    struct tarn_client *other =
        client_open(here.redis->url, (struct tarn_options){.transports = "rdma,tcp", .timeout_ms = LONG_MS});
    assert_int_equal(client_put(other, "theirs", 'y', BYTES, NULL), 0);
    assert_int_equal(tarn_put_write(session, 0, 0, &piece, 1, LONG_MS), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), "has dropped the reservation"));
    tarn_put_abort(session);
    assert_int_equal(client_get(other, "theirs", 'y', BYTES), 0);
    assert_int_equal(put_within("mine", LONG_MS), 0);
    tarn_close(other);
    free(data);
}

/* With another node the answer is not waited for as long: the put continues there with a new reservation. */
static void a_put_continues_on_another_node(void **state)
{
    (void)state;
    struct here second;
    start_here_as(&second, "second", &here);
    tarn_close(client); /* it would not know that node yet */
    open_client();
    relay_hold(relay, "DETACH");
    for (int i = 0; relay_held(relay, "DETACH") == 0; i++) { /* until this node is first for a key */
        char key[16];
        assert_true(i < 100);
        end_putting();
        snprintf(key, sizeof key, "k%d", i);
        start_putting(key, LONG_MS);
        HARNESS_UNTIL(atomic_load(&putting.ended) || relay_held(relay, "DETACH") > 0, LONG_MS);
    }
    end_putting();
    if (putting.status)
        fail_msg("put: %s", putting.error);
    assert_true(reserved() > 0);
    assert_int_equal(relay_passed(relay, "ABORT"), 0);
    assert_int_equal(client_get(client, putting.key, 'x', BYTES), 0);
    relay_hold(relay, NULL);
    HARNESS_UNTIL(reserved() == 0, LONG_MS);
    tarn_close(client);
    client = NULL;
    stop_here(&second);
}

/* --- clients that end before ATTACH is answered ------------------------------------------------------- */

#define END "v1 1,2,0,1,00000000000000000000ffff7f000001,3,10,10"
#define END_BYTES "51"

/* The network lookup blocks while it is held. */
static void ask_network(void)
{
    atomic_fetch_add(&network.asking, 1);
    while (atomic_load(&network.held))
        harness_pause();
    atomic_fetch_sub(&network.asking, 1);
}

/* True if a connection's last command is ATTACH. */
static bool is_attaching(void)
{
    redisReply *list = harness_call(relay_node(relay), "CLIENT", "LIST", NULL);
    bool attaching = strcasestr(list->str, "cmd=ATTACH") != NULL;
    freeReplyObject(list);
    return attaching;
}

/* In a child: requests a link for writing, and waits for the answer. */
static _Noreturn void attach_and_wait(const char *address)
{
    static const char text[] = "*3\r\n$5\r\nHELLO\r\n$1\r\n1\r\n$2\r\n51\r\n"
                               "*4\r\n$6\r\nATTACH\r\n$4\r\nrdma\r\n$1\r\nw\r\n$" END_BYTES "\r\n" END "\r\n";
    int fd = raw_connect(address);
    raw_send(fd, text, sizeof text - 1);
    for (;;)
        pause();
}

/* The client is killed while the node waits for the network. The next ATTACH is answered when that one is
 * over. */
static void a_client_killed_before_the_answer_leaves_no_queue_pair(void **state)
{
    const char *address = relay_node(relay);
    (void)state;
    pthread_mutex_lock(&fake_lock);
    fake.node_joins = ask_network;
    pthread_mutex_unlock(&fake_lock);
    atomic_store(&network.held, true);
    pid_t pid = fork();
    if (pid == 0)
        attach_and_wait(address);
    HARNESS_UNTIL(atomic_load(&network.asking) > 0, LONG_MS);
    assert_true(is_attaching());
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    HARNESS_UNTIL(!is_attaching(), LONG_MS);
    struct tarn_resp *next = node_join(address, "52");
    atomic_store(&network.held, false);
    redisReply *r = harness_command(next, "ATTACH", "rdma", "w", END, NULL);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    assert_int_equal(node_queue_pairs(), 1); /* the second client's */
    tarn_resp_free(next);
    HARNESS_UNTIL(node_queue_pairs() == 0, LONG_MS);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_broken_put_leaves_no_queue_pair_at_the_node),
        CASE(a_put_takes_another_way_after_the_nodes_answer),
        CASE(a_timed_out_put_returns_its_space_after_the_answer),
        CASE(a_canceled_put_returns_its_space_after_the_answer),
        CASE(a_put_session_without_its_reservation_writes_nothing),
        CASE(a_put_continues_on_another_node),
        CASE(a_client_killed_before_the_answer_leaves_no_queue_pair),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
