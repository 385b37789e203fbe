/* SPDX-License-Identifier: Apache-2.0 */
#include "server/options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/net.h"
#include "base/text.h"
#include "metadata/directory.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

#define AT(member_) offsetof(struct tarn_node_config, member_)
#define INT_OPTION(name_, member_, initial_, min_, max_, unit_, help_) \
    { \
        .name = name_, .type = TARN_OPT_INT, .offset = AT(member_), .initial = initial_, .min = min_, \
        .max = max_, .unit = unit_, .help = help_ \
    }
#define TEXT_OPTION(name_, member_, initial_, unit_, help_) \
    { \
        .name = name_, .type = TARN_OPT_STRING, .offset = AT(member_), .initial = initial_, .unit = unit_, \
        .help = help_ \
    }
#define ACTION(name_, member_, help_) \
    { \
        .name = name_, .type = TARN_OPT_BOOL, .offset = AT(member_), .initial = "0", \
        .flags = TARN_OPT_FLAG_ONLY, .help = help_ \
    }

static const struct tarn_option options[] = {
    TEXT_OPTION("config", config, NULL, "FILE", "Read settings from this file, one \"name = value\" a line."),
    TEXT_OPTION("id", id, NULL, "NAME",
                "Name of this node, of letters, digits, '.', '_' and '-'. Unique among the living nodes of a "
                "namespace. Without it: <host>-<pid>."),
    {.name = "pool",
     .type = TARN_OPT_LIST,
     .offset = AT(pools),
     .initial = "cpu0:bytes=1G",
     .unit = "NAME:bytes=SIZE[,device=GPU][,huge=1][,slots=N][,align=SIZE]",
     .help = "Memory to lend; give it several times for several pools. Settings are parted by commas: bytes, "
             "the size; device, take it from this GPU: an index, or a uuid as nvidia-smi -L prints it; "
             "huge=1, take huge pages; slots, objects at most (by default one for 4 KiB); align, of tensors "
             "within the pool. Puts go to a GPU pool when they name it, or when the node has no other."},
    TEXT_OPTION(
        "state-dir", state_dir, NULL, "DIRECTORY",
        "Keep the pools in files there, so that they outlive the process: a node that starts with the same "
        "id and pools goes on with all that is intact, after a crash, too. SIGTERM keeps the objects then; "
        "DRAIN takes them out. Of CPU pools without huge pages only. A directory in a tmpfs is as fast as "
        "none. It does not outlive a boot of the machine (docs/warm-restart.md)."),
    TEXT_OPTION("listen", listen, "127.0.0.1:7700", "ADDRESS",
                "Address of control connections, host:port; port 0 takes a free one. Clients of other hosts "
                "need an address they can reach here."),
    TEXT_OPTION("unix", unix_path, NULL, "PATH",
                "Unix socket of control connections, in a directory made with mode 0700 (see --unix-mode) "
                "when missing. Without it: $XDG_RUNTIME_DIR/tarn/<id>.sock, or /tmp/tarn-<uid>/<id>.sock."),
    TEXT_OPTION(
        "unix-mode", unix_mode, "0600", "MODE",
        "Permissions of the Unix socket, in octal. Who may write to it may connect, and then use shared "
        "memory, with the secret. A directory that the node makes for it lets the same users through."),
    TEXT_OPTION("unix-group", unix_group, NULL, "GROUP",
                "Group of the Unix socket, and of a directory that the node makes for it; with --unix-mode "
                "0660 its members may connect. Without it that of the process."),
    INT_OPTION("data-port", data_port, "0", 0, 65535, "PORT",
               "Port of tcp data connections; tcpx takes the one behind it. 0 takes free ones."),
    {.name = "redis",
     .type = TARN_OPT_STRING,
     .offset = AT(redis),
     .unit = "URI",
     .flags = TARN_OPT_LOGIN,
     .help =
         "The directory: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or with Sentinel "
         "redis+sentinel://[user[:password]@]host[:port][,host...]/name[/db]. Without it the node starts a "
         "private redis-server and prints its address."},
    TEXT_OPTION("ns", ns, "default", "NAME", "Namespace: nodes and clients see those of their own only."),
    {.name = "secret",
     .type = TARN_OPT_STRING,
     .offset = AT(secret),
     .unit = "TEXT",
     .flags = TARN_OPT_SECRET,
     .help = "Shared secret that control connections must show. Without it the node makes one at each start "
             "and puts it into its record in Redis, where clients find it; but not when Redis lets other "
             "users in and --listen is a loopback address. Prefer the environment or the file: flags can be "
             "seen by every user of the machine."},
    {.name = "admin-secret",
     .type = TARN_OPT_STRING,
     .offset = AT(admin_secret),
     .unit = "TEXT",
     .flags = TARN_OPT_SECRET,
     .help = "Secret that gives the right to administer the node over TCP (DRAIN, EVICT, CONFIG, CLIENT), "
             "and all that --secret gives. Without it only the node's user and root have that right, over "
             "the Unix socket."},
    TEXT_OPTION(
        "transports", transports, NULL, "LIST",
        "Transports to offer, parted by commas, best first. Without it all that work on this machine."),
    TEXT_OPTION("rdma-devices", rdma_devices, NULL, "LIST",
                "Devices of the rdma transport, parted by commas: NAME[:PORT][@GID INDEX]. Without it all "
                "that have an active port."),
    {.name = "rdma-region-bytes",
     .type = TARN_OPT_SIZE,
     .offset = AT(rdma_region_bytes),
     .initial = "3584M",
     .min = 1 << 20,
     .max = INT64_MAX,
     .unit = "SIZE",
     .help = "Largest memory region that the rdma transport registers: pools are registered in parts of this "
             "size, or of what the device takes when that is less."},
    TEXT_OPTION(
        "tcpx-plugin", tcpx_plugin, NULL, "PATH",
        "Network plugin of the tcpx transport: a library with NCCL's ABI version 6, 7 or 8. Without it TCPX "
        "is looked for in the usual places (docs/tcpx.md). `tarn doctor tcpx` says what is missing."),
    TEXT_OPTION("tcpx-unpack-impl", tcpx_unpack_impl, "kernel", "WAY",
                "How the tcpx transport gets what it receives to its place in a GPU pool: kernel, one launch "
                "for all fragments; d2d, a copy for each; host, through memory of the host."),
    INT_OPTION(
        "io-threads", io_threads, "0", 0, 64, "N",
        "Threads of the tcp transport, at most: as many as there are connections. 0: one for each processor, "
        "16 at most."),
    TEXT_OPTION(
        "eviction", eviction, "adaptive", "POLICY",
        "Which objects leave a full pool: lru, least recently used; adaptive, least worth keeping, as "
        "learned from uses by age, by earlier uses, and by what continues what. `tarn-bench policies` tells "
        "which suits a trace."),
    {.name = "session-reserved-max",
     .type = TARN_OPT_SIZE,
     .offset = AT(session_reserved_max),
     .initial = "16G",
     .min = 4096,
     .max = INT64_MAX,
     .unit = "SIZE",
     .help = "Bytes a client may have reserved and not committed."},
    INT_OPTION("redis-timeout-ms", redis_timeout_ms, "1000", 10, 60000, "MS",
               "Longest wait for an answer of Redis."),
    INT_OPTION("heartbeat-ms", heartbeat_ms, "1000", 50, 60000, "MS",
               "Time between refreshes of the node's record. It expires after three. A node starts only with "
               "the value that the living nodes of its namespace have."),
    TEXT_OPTION("when-cut-off", when_cut_off, "serve", "WAY",
                "What clients do that are cut off from Redis and still reach this node: serve, they go on "
                "reading from it, also what was replaced or removed elsewhere meanwhile; refuse, they stop "
                "when its record may have expired (docs/consistency.md)."),
    INT_OPTION("scrub-s", scrub_s, "600", 1, 86400, "SECONDS",
               "Time in which the node compares all it holds with the directory, both ways."),
    INT_OPTION("drain-timeout-ms", drain_timeout_ms, "10000", 0, 3600000, "MS",
               "Longest wait for puts in flight when the node ends. A client that has reserved and then says "
               "nothing for 2 s, and 1 s more for each 100 MB, is not waited for."),
    TEXT_OPTION("http", http, NULL, "ADDRESS",
                "Address of /metrics (Prometheus) and /health, host:port. Without it there is none."),
    TEXT_OPTION("log-level", log_level, "info", "LEVEL",
                "error, warn, info or debug. `tarn config` changes it while the node runs."),
    ACTION("print-conf", print_conf, "Print the settings in effect and where they come from, and exit."),
    {.name = "help",
     .letter = 'h',
     .type = TARN_OPT_BOOL,
     .offset = AT(help),
     .initial = "0",
     .flags = TARN_OPT_FLAG_ONLY,
     .help = "Print this and exit."},
    ACTION("version", version, "Print the version and exit."),
    ACTION("man", man, "Print the manual page (mdoc) and exit."),
    ACTION("markdown", markdown, "Print this as Markdown and exit."),
    {.name = "completion",
     .type = TARN_OPT_STRING,
     .offset = AT(completion),
     .unit = "SHELL",
     .flags = TARN_OPT_FLAG_ONLY,
     .help = "Print a script that completes command lines, for bash or zsh, and exit."},
};

static const char *const other_variables[] = {"TARN_FAULTS", "TARN_BUILD", "TARN_TCPX_STALL_MS",
                                              "TARN_TIMEOUT_MS", NULL};

const struct tarn_program tarn_node_program = {
    .name = "tarnd",
    .arguments = "",
    .brief = "storage node of tarn",
    .description =
        "Lends memory pools to clients and publishes what they hold in Redis. Clients move tensors into and "
        "out of the pools by themselves; the node takes part in reservations and commits only.\n\n"
        "When it is ready, tarnd prints one line on standard output: tarnd ready id=... control=... unix=... "
        "redis=... It logs to standard error, one line an event: time=... level=... at=... msg=...\n\n"
        "SIGTERM and SIGINT drain the node: it takes no more puts, waits for those in flight, takes its "
        "objects out of the directory and exits with 0. A second one ends it at once. Exit status 2: wrong "
        "settings; 1: it could not start, or another node took its id.",
    .examples = "tarnd --pool cpu0:bytes=4G\n"
                "tarnd --pool cpu0:bytes=64G --pool gpu0:device=0,bytes=16G\n"
                "tarnd --id node1 --listen 10.0.0.5:7700 --redis redis://10.0.0.1:6379\n"
                "redis-cli -s /tmp/tarn-1000/node1.sock INFO",
    .options = options,
    .noptions = sizeof(options) / sizeof(options[0]),
    .env_check = "TARN_",
    .env_also = other_variables,
};

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

static int pool_setting(const char *text, const char *name, const char *value, struct tarn_pool_options *o)
{
    uint64_t v = 0;
    bool number = tarn_size_parse(value, &v) == 0;
    if (!strcmp(name, "device") && value[0] && strlen(value) < sizeof(o->device))
        memcpy(o->device, value, strlen(value) + 1);
    else if (number && !strcmp(name, "bytes") && v)
        o->bytes = v;
    else if (number && !strcmp(name, "huge") && v <= 1)
        o->huge = v == 1;
    else if (number && !strcmp(name, "slots") && v >= 1 && v <= 1u << 28)
        o->slots = (uint32_t)v;
    else if (number && !strcmp(name, "align") && v >= 64 && v <= 1u << 30 && (v & (v - 1)) == 0)
        o->align = v;
    else
        return tarn_fail(TARN_E_CONFIG,
                         "--pool %.80s: %.40s=%.40s is not possible: use bytes=SIZE, device=INDEX or UUID of "
                         "a GPU, huge=0 or 1, slots=1 to 2^28, align=a power of two from 64 to 1G",
                         text, name, value);
    return 0;
}

static int pool_settings(const char *text, const char *settings, struct tarn_pool_options *o)
{
    int rc = 0;
    char *copy = strdup(settings), *rest = copy, *item;
    if (!copy)
        return tarn_fail(TARN_E_NO_MEMORY, "--pool: out of memory");
    while (!rc && (item = strsep(&rest, ","))) {
        char *value = strchr(item, '=');
        if (!*item)
            rc = tarn_fail(TARN_E_CONFIG, "--pool %.80s: a comma without a setting: leave it out", text);
        else if (!value)
            rc =
                tarn_fail(TARN_E_CONFIG, "--pool %.80s: \"%s\" has no value: write %s=...", text, item, item);
        else
            *value++ = 0, rc = pool_setting(text, item, value, o);
    }
    free(copy);
    return rc;
}

int tarn_pool_options_parse(const char *text, struct tarn_pool_options *o)
{
    size_t name = strcspn(text, ":"), shown = name < TARN_POOL_NAME_MAX ? name : TARN_POOL_NAME_MAX;
    *o = (struct tarn_pool_options){0};
    if (!text[name] || !text[name + 1])
        return tarn_fail(TARN_E_CONFIG, "--pool %.80s: no size: write %.*s:bytes=1G", text,
                         shown ? (int)shown : 4, shown ? text : "cpu0");
    if (name < 1 || name > TARN_POOL_NAME_MAX || strspn(text, name_letters) < name)
        return tarn_fail(TARN_E_CONFIG,
                         "--pool %.80s: a pool's name has 1 to %d letters, digits, '.', '_' or '-'", text,
                         TARN_POOL_NAME_MAX);
    memcpy(o->name, text, name);
    int rc = pool_settings(text, text + name + 1, o);
    if (!rc && !o->bytes)
        rc = tarn_fail(TARN_E_CONFIG, "--pool %.80s: no size: add bytes=1G", text);
    if (!rc && !strncmp(text, "gpu", 3) && !o->device[0])
        rc = tarn_fail(TARN_E_CONFIG,
                       "--pool %.80s: whose memory? add device=0 for a GPU's, or give the pool another name",
                       text);
    if (!rc && o->huge && o->device[0])
        rc = tarn_fail(TARN_E_CONFIG,
                       "--pool %.80s: huge pages are the CPU's memory: leave huge or device out", text);
    return rc;
}

int tarn_log_level_parse(const char *where, const char *text, enum tarn_log_level *level)
{
    for (int i = TARN_LOG_ERROR; i <= TARN_LOG_DEBUG; i++) {
        if (!strcmp(text, tarn_log_level_name((enum tarn_log_level)i))) {
            *level = (enum tarn_log_level)i;
            return 0;
        }
    }
    return tarn_fail(TARN_E_CONFIG, "%s %.40s: no such level: use error, warn, info or debug", where, text);
}

static int check_name(const char *option, const char *text, size_t max)
{
    size_t n = strlen(text);
    if (n >= 1 && n <= max && !text[strspn(text, name_letters)])
        return 0;
    return tarn_fail(TARN_E_CONFIG, "%s \"%s\": must have 1 to %zu letters, digits, '.', '_' or '-'", option,
                     text, max);
}

/* A name without a folder is the loader's to find. */
static int check_plugin(const char *path)
{
    if (!path || !strchr(path, '/') || access(path, R_OK) == 0)
        return 0;
    return tarn_fail(TARN_E_CONFIG, "--tcpx-plugin %s: %m: name a library that is there, or leave it out",
                     path);
}

/* The address is published, so it must be one that clients can use. */
static int check_listen(const struct tarn_node_config *c)
{
    struct tarn_addr a;
    int rc = tarn_addr_parse(c->listen, "--listen", &a);
    if (!rc && (a.is_unix || !strcmp(a.host, "0.0.0.0") || !strcmp(a.host, "::")))
        rc = tarn_fail(TARN_E_CONFIG,
                       "--listen %s: clients cannot connect to that: give an address of this host "
                       "that they reach, with a port",
                       c->listen);
    return rc;
}

int tarn_unix_mode_parse(const char *text, unsigned *mode)
{
    size_t digits = strspn(text, "01234567");
    unsigned long value = digits && digits <= 5 && !text[digits] ? strtoul(text, NULL, 8) : 0;
    if (value > 0777 || (value & 0600) != 0600)
        return tarn_fail(TARN_E_CONFIG,
                         "--unix-mode %s: must be an octal number from 0600 to 0777 that lets the owner in",
                         text);
    *mode = (unsigned)value;
    return 0;
}

int tarn_node_config_check(const struct tarn_node_config *c)
{
    enum tarn_log_level level;
    enum tarn_tcpx_way way;
    enum tarn_eviction eviction;
    struct tarn_addr http;
    unsigned mode;
    int rc = tarn_log_level_parse("--log-level", c->log_level, &level);
    if (!rc)
        rc = tarn_tcpx_way_parse(c->tcpx_unpack_impl, &way);
    if (!rc)
        rc = check_plugin(c->tcpx_plugin);
    if (!rc && strcmp(c->when_cut_off, "serve") && strcmp(c->when_cut_off, "refuse"))
        rc = tarn_fail(TARN_E_CONFIG, "--when-cut-off %s: no such way: use serve or refuse", c->when_cut_off);
    if (!rc && c->redis && !*c->redis)
        rc = tarn_fail(TARN_E_CONFIG,
                       "--redis is empty: give an address, or leave it out for a private Redis");
    if (!rc && c->unix_path && !*c->unix_path)
        rc = tarn_fail(TARN_E_CONFIG, "--unix is empty: give a path, or leave it out");
    if (!rc && c->http)
        rc = tarn_addr_parse(c->http, "--http", &http);
    if (!rc && c->id)
        rc = check_name("--id", c->id, TARN_NODE_ID_MAX);
    if (!rc)
        rc = check_name("--ns", c->ns, TARN_NS_MAX);
    if (!rc)
        rc = tarn_unix_mode_parse(c->unix_mode, &mode);
    if (!rc)
        rc = tarn_eviction_parse(c->eviction, &eviction);
    if (!rc && (c->pools.n < 1 || c->pools.n > TARN_POOLS_MAX))
        rc = tarn_fail(TARN_E_CONFIG, "--pool: %zu pools: give 1 to %d", c->pools.n, TARN_POOLS_MAX);
    for (size_t i = 0; !rc && i < c->pools.n; i++) {
        struct tarn_pool_options o;
        rc = tarn_pool_options_parse(c->pools.values[i], &o);
    }
    return rc ? rc : check_listen(c);
}
