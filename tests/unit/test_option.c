/* SPDX-License-Identifier: Apache-2.0 */
/* Options: the four sources and their order, each refusal with its remedy, and the printed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "base/error.h"
#include "base/option/option.h"
#include "base/option/option_pages.h"
#include "base/option/option_print.h"
#include "base/option/option_value.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))
#define AT(member_) offsetof(struct config, member_)

struct config {
    bool help, json, sync;
    int64_t beat;
    uint64_t room;
    char *redis, *secret, *config;
    struct tarn_option_list pools;
};

static const struct tarn_option table[] = {
    {"help", 'h', TARN_OPT_BOOL, AT(help), NULL, 0, 0, NULL, TARN_OPT_FLAG_ONLY, "Print this help."},
    {"config", 'c', TARN_OPT_STRING, AT(config), NULL, 0, 0, "FILE", 0, "Read options from this file."},
    {"json", 'j', TARN_OPT_BOOL, AT(json), NULL, 0, 0, NULL, TARN_OPT_FLAG_ONLY, "JSON in place of text."},
    {"sync", 0, TARN_OPT_BOOL, AT(sync), "true", 0, 0, NULL, 0, "Wait for Redis."},
    {"heartbeat-ms", 'b', TARN_OPT_INT, AT(beat), "1000", 10, 60000, "MS", 0,
     "How often the node says that it lives. Its records vanish after three missed beats, and then its "
     "objects "
     "count as lost."},
    {"room", 'r', TARN_OPT_SIZE, AT(room), "64M", 4096, 1ll << 40, "BYTES", 0, "Room."},
    {"redis", 0, TARN_OPT_STRING, AT(redis), NULL, 0, 0, "URL", TARN_OPT_LOGIN,
     "Where Redis is. '.' is no macro."},
    {"secret", 0, TARN_OPT_STRING, AT(secret), NULL, 0, 0, NULL, TARN_OPT_SECRET, "Shared \\secret."},
    {"pool", 'p', TARN_OPT_LIST, AT(pools), "a=1G b=2G", 0, 0, "NAME=SIZE", 0, "A pool."},
};

static const char *const others[] = {"TARN_BUILD", NULL};

static const struct tarn_program program = {
    .name = "tarnd",
    .arguments = "[NODE]",
    .brief = "storage node of tarn",
    .description =
        "Lends memory to clients, which then move the bytes themselves, and so on and on.\n\n.Second one.",
    .examples = "  tarnd --redis redis://localhost\n\n.dot\n'quote\n  tarnd \\\n    -j",
    .options = table,
    .noptions = COUNT(table),
    .env_check = "TARN_",
    .env_also = others,
};

/* The result of one parse. */
struct run {
    struct config c;
    struct tarn_options_parsed parsed;
    int rc;
};

/* The command line of the last run. */
static char words[32][300] = {"tarnd"}, *argv[32];

static struct run *run(struct run *r, ...)
{
    int argc = 1;
    va_list ap;

    va_start(ap, r);
    for (const char *a; (a = va_arg(ap, const char *)); argc++)
        snprintf(words[argc], sizeof words[argc], "%s", a);
    va_end(ap);
    for (int i = 0; i < argc; i++)
        argv[i] = words[i];
    memset(r, 0, sizeof *r);
    r->rc = tarn_options_parse(&program, argc, argv, &r->c, &r->parsed);
    return r;
}

static void done(struct run *r)
{
    tarn_options_free(&program, &r->c, &r->parsed);
}

static size_t index_of(const char *name)
{
    for (size_t i = 0; i < COUNT(table); i++)
        if (strcmp(table[i].name, name) == 0)
            return i;
    fail();
    return 0;
}

static enum tarn_option_source source_of(const struct run *r, const char *name)
{
    return r->parsed.sources[index_of(name)];
}

static bool is_over_file(const struct run *r, const char *name)
{
    return r->parsed.over_file[index_of(name)];
}

/* A file that the tests write and pass with --config. */
static char conf[64];

static int make_conf(void **state)
{
    (void)state;
    snprintf(conf, sizeof conf, "/tmp/tarn-option-XXXXXX");
    int fd = mkstemp(conf);
    return fd < 0 ? -1 : close(fd);
}

static int remove_conf(void **state)
{
    (void)state;
    return unlink(conf);
}

static void write_conf(const char *text)
{
    FILE *f = fopen(conf, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* TARN_ variables of the environment must not affect the tests. */
static int clear_environment(void **state)
{
    (void)state;
    for (char **e = environ; e && *e;) {
        char name[200];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "TARN_", 5) == 0 && unsetenv(name) == 0)
            e = environ;
        else
            e++;
    }
    return 0;
}

/* --- values ------------------------------------------------------------------------------------- */

static void defaults(void **state)
{
    struct run r;

    (void)state;
    assert_int_equal(run(&r, NULL)->rc, 0);
    assert_true(!r.c.help && !r.c.json && r.c.sync);
    assert_int_equal(r.c.beat, 1000);
    assert_int_equal(r.c.room, 64 << 20);
    assert_null(r.c.redis);
    assert_int_equal(r.c.pools.n, 2);
    assert_string_equal(r.c.pools.values[1], "b=2G");
    assert_int_equal(r.parsed.nargs, 0);
    assert_int_equal(source_of(&r, "room"), TARN_FROM_DEFAULT);
    done(&r);
}

static void forms_of_flags(void **state)
{
    struct run r;

    (void)state;
    run(&r, "one", "--json", "--no-sync", "--heartbeat-ms", "20", "--room=1.5K", "--redis", "", "-",
        "--pool=x", "--pool", "y z", NULL);
    assert_int_equal(r.rc, TARN_E_CONFIG); /* 1.5K is too small */
    done(&r);
    run(&r, "one", "--json", "--no-sync", "--heartbeat-ms", "20", "--room=1.5M", "--redis", "", "-",
        "--pool=x", "--pool", "y z", "--", "--json", "-x", NULL);
    assert_int_equal(r.rc, 0);
    assert_true(r.c.json && !r.c.sync);
    assert_int_equal(r.c.beat, 20);
    assert_int_equal(r.c.room, 3 << 19);
    assert_string_equal(r.c.redis, "");
    assert_int_equal(r.c.pools.n, 2); /* replaces the defaults */
    assert_string_equal(r.c.pools.values[1], "y z");
    assert_int_equal(r.parsed.nargs, 4);
    assert_string_equal(r.parsed.args[0], "one");
    assert_string_equal(r.parsed.args[1], "-");
    assert_string_equal(r.parsed.args[3], "-x");
    done(&r);
    assert_int_equal(run(&r, "-jb30", "-r", "8K", "-p", "q", NULL)->rc, 0);
    assert_true(r.c.json && r.c.beat == 30 && r.c.room == 8192 && r.c.pools.n == 1);
    done(&r);
    assert_int_equal(run(&r, "--heartbeat-ms=20", "--heartbeat-ms=40", "--no-sync", "--sync", NULL)->rc, 0);
    assert_true(r.c.beat == 40 && r.c.sync);
    done(&r);
}

static void order_of_sources(void **state)
{
    struct run r;

    (void)state;
    write_conf("heartbeat-ms = 11\nroom = 8K\nsync = no\npool = f1\npool = f2\n");
    setenv("TARN_ROOM", "16K", 1);
    setenv("TARN_POOL", " e1\te2  e3 ", 1);
    setenv("TARN_CONFIG", conf, 1);
    setenv("TARN_REDIS", "", 1); /* empty counts as unset */
    setenv("TARN_BUILD", "of another program", 1);
    assert_int_equal(run(&r, "--sync", NULL)->rc, 0);
    assert_true(r.c.beat == 11 && r.c.room == 16384 && r.c.sync && !r.c.redis);
    assert_int_equal(r.c.pools.n, 3);
    assert_string_equal(r.c.pools.values[2], "e3");
    assert_int_equal(source_of(&r, "heartbeat-ms"), TARN_FROM_FILE);
    assert_int_equal(source_of(&r, "room"), TARN_FROM_ENV);
    assert_true(is_over_file(&r, "room") && !is_over_file(&r, "heartbeat-ms") && !is_over_file(&r, "redis"));
    assert_int_equal(source_of(&r, "sync"), TARN_FROM_FLAG);
    assert_int_equal(source_of(&r, "redis"), TARN_FROM_DEFAULT);
    done(&r);
    unsetenv("TARN_POOL");
    assert_int_equal(run(&r, "--room", "32K", NULL)->rc, 0);
    assert_true(r.c.room == 32768 && !r.c.sync);
    assert_int_equal(r.c.pools.n, 2);
    assert_string_equal(r.c.pools.values[0], "f1");
    done(&r);
}

static void lines_of_a_file(void **state)
{
    struct run r;

    (void)state;
    write_conf("# comment\r\n\n  redis=a#b  # comment\r\nroom\t=\t4K\n"
               "secret = \" a \\\"b\\\\n\\n# \" # comment\npool = \"\"\nheartbeat-ms = 12");
    assert_int_equal(run(&r, "--config", conf, NULL)->rc, 0);
    assert_string_equal(r.c.redis, "a#b");
    assert_string_equal(r.c.secret, " a \"b\\n\n# ");
    assert_int_equal(r.c.room, 4096);
    assert_int_equal(r.c.beat, 12);
    assert_int_equal(r.c.pools.n, 1);
    assert_string_equal(r.c.pools.values[0], "");
    done(&r);
}

/* --- refusals ----------------------------------------------------------------------------------- */

/* The message must have both parts that a user needs: the given value, and what to write instead. */
static void refused(struct run *r, const char *first, const char *second)
{
    assert_int_equal(r->rc, TARN_E_CONFIG);
    if (!strstr(tarn_last_error(), first) || !strstr(tarn_last_error(), second))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", tarn_last_error(), first, second);
    done(r);
}

static void flags_refused(void **state)
{
    struct run r;

    (void)state;
    refused(run(&r, "--hartbeat-ms", "5", NULL), "--hartbeat-ms", "--heartbeat-ms?");
    refused(run(&r, "--wholly-else=5", NULL), "--wholly-else", "tarnd --help");
    refused(run(&r, "--=5", NULL), "--", "tarnd --help");
    refused(run(&r, "--no-redis", NULL), "--no-redis", "");
    refused(run(&r, "-jx", NULL), "-x", "tarnd --help");
    refused(run(&r, "--redis", NULL), "--redis", "URL");
    refused(run(&r, "-b", NULL), "--heartbeat-ms", "MS");
    refused(run(&r, "--json=yes", NULL), "--json", "--no-json");
    refused(run(&r, "--heartbeat-ms", "9", NULL), "9 is out of range", "10 to 60000 MS");
    refused(run(&r, "--heartbeat-ms", "-5", NULL), "-5", "10 to 60000 MS");
    refused(run(&r, "--heartbeat-ms=99999999999999999999", NULL), "99999999999999999999", "10 to 60000");
    refused(run(&r, "--heartbeat-ms", "1s", NULL), "\"1s\"", "MS");
    refused(run(&r, "--heartbeat-ms", "", NULL), "\"\"", "MS");
    refused(run(&r, "--heartbeat-ms", " 20", NULL), "\" 20\"", "MS");
    refused(run(&r, "--room", "1", NULL), "1 is out of range", "4K to 1T");
    refused(run(&r, "--room", "2T", NULL), "2T", "4K to 1T");
    refused(run(&r, "--room", "-1", NULL), "-1", "4K to 1T");
    refused(run(&r, "--room", "many", NULL), "many", "64K");
    refused(run(&r, "--secret", "", NULL), "--secret: is empty", "leave it out");
}

static void variables_refused(void **state)
{
    struct run r;

    (void)state;
    setenv("TARN_HARTBEAT_MS", "20", 1);
    refused(run(&r, NULL), "TARN_HARTBEAT_MS", "TARN_HEARTBEAT_MS?");
    assert_int_equal(run(&r, "--help", NULL)->rc, 0); /* help works even then */
    assert_true(r.c.help);
    done(&r);
    clear_environment(NULL);
    setenv("TARN_JSON", "1", 1); /* a flag without a variable */
    refused(run(&r, NULL), "TARN_JSON", "");
    clear_environment(NULL);
    setenv("TARN_ROOM", "x", 1);
    refused(run(&r, NULL), "TARN_ROOM", "\"x\"");
}

static void lines_refused(void **state)
{
    static const struct {
        const char *line, *first, *second;
    } rows[] = {
        {"romo = 8K", ":2: romo", "room?"},
        {"secret swordfish", ":2: has no", "NAME = VALUE"},
        {"room = 8X", ":2: room", "8X"},
        {"room =", ":2: room", "\"\""},
        {"heartbeat-ms = 1", ":2: heartbeat-ms", "10 to 60000"},
        {"sync = maybe", ":2: sync", "maybe"},
        {"json = true", ":2: json", "--json"},
        {"config = x", ":2: config", "--config"},
        {"redis = \"open", ":2: redis", "\""},
        {"redis = \"a\" b", ":2: redis", "\""},
        {"= 5", ":2:", ""},
    };
    struct run r;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[200];
        snprintf(text, sizeof text, "# first\n%s\n", rows[i].line);
        write_conf(text);
        refused(run(&r, "-c", conf, NULL), rows[i].first, rows[i].second);
    }
    refused(run(&r, "-c", "/nonexistent/tarn.conf", NULL), "/nonexistent/tarn.conf", "No such file");
    refused(run(&r, "-c", "/tmp", NULL), "/tmp", "file");
    refused(run(&r, "-c", "/dev/zero", NULL), "/dev/zero", "file");
}

/* --- what is printed ---------------------------------------------------------------------------- */

static void conf_is_read_back(void **state)
{
    struct run r, again;
    struct tarn_buf first = {0}, second = {0};

    (void)state;
    run(&r, "--redis", " odd://\"value\" # \\ \n", "--pool", "", "--pool", "p#q", "--no-sync", "--room",
        "4097", "--secret", "s3cret", NULL);
    assert_int_equal(r.rc, 0);
    tarn_options_print_conf(&program, &r.c, &r.parsed, &first);
    assert_null(strstr(first.data, "s3cret"));
    assert_non_null(strstr(first.data, "(set)"));
    assert_non_null(strstr(first.data, "# from flag"));
    assert_null(strstr(first.data, "json")); /* not a setting: for one call only */
    write_conf(first.data);
    assert_int_equal(run(&again, "-c", conf, NULL)->rc, 0);
    assert_string_equal(again.c.redis, r.c.redis);
    assert_int_equal(again.c.pools.n, 2);
    assert_string_equal(again.c.pools.values[0], "");
    assert_string_equal(again.c.pools.values[1], "p#q");
    assert_true(again.c.room == 4097 && !again.c.sync);
    assert_null(again.c.secret);
    tarn_options_print_conf(&program, &again.c, &again.parsed, &second);
    assert_non_null(strstr(second.data, "# from file"));
    tarn_buf_free(&first);
    tarn_buf_free(&second);
    done(&r);
    done(&again);
}

/* ps shows the command line to everyone. */
static void secrets_leave_the_command_line(void **state)
{
    struct run r;

    (void)state;
    assert_int_equal(run(&r, "--secret=s3cret", "--redis", "redis://me:p@ss@host:1/2", "arg", NULL)->rc, 0);
    assert_string_equal(words[1], "--secret=******");
    assert_string_equal(words[3], "redis://*******@host:1/2");
    assert_string_equal(r.c.secret, "s3cret");
    assert_string_equal(r.c.redis, "redis://me:p@ss@host:1/2");
    assert_string_equal(r.parsed.args[0], "arg");
    done(&r);
    assert_int_equal(run(&r, "--redis", "redis://host:1", "--secret", "s", "--heartbeat-ms", "x", NULL)->rc,
                     TARN_E_CONFIG);
    assert_string_equal(words[2], "redis://host:1");
    assert_string_equal(words[4], "*");
    done(&r);
}

static void help_text(void **state)
{
    struct tarn_buf b = {0};

    (void)state;
    tarn_options_help(&program, &b);
    for (const char *line = b.data; *line; line += strcspn(line, "\n") + 1) {
        size_t bytes = strcspn(line, "\n");
        assert_in_range(bytes, 0, 80);
        assert_true(bytes == 0 || line[bytes - 1] != ' ');
    }
    for (size_t i = 0; i < COUNT(table); i++)
        assert_non_null(strstr(b.data, table[i].name));
    assert_non_null(strstr(b.data, "Usage: tarnd [OPTION...] [NODE]\n"));
    assert_non_null(strstr(b.data, "  -h, --help  "));
    assert_non_null(strstr(b.data, "      --[no-]sync  "));
    assert_non_null(strstr(b.data, "  -b, --heartbeat-ms MS  "));
    assert_non_null(strstr(b.data, "allowed 4K to 1T"));
    assert_non_null(strstr(b.data, "TARN_HEARTBEAT_MS"));
    tarn_buf_free(&b);
}

static void values_as_text(void **state)
{
    struct run r;
    struct tarn_buf b = {0};

    (void)state;
    assert_int_equal(run(&r, "--secret", "s", NULL)->rc, 0);
    for (size_t i = 0; i < COUNT(table); i++) {
        tarn_option_format(&table[i], &r.c, i == 0, &b);
        tarn_buf_add(&b, ";", 1);
    }
    assert_string_equal(b.data, "false;;false;true;1000;64M;;(set);a=1G b=2G;");
    b.bytes = 0;
    tarn_option_format(&table[7], &r.c, 1, &b);
    assert_string_equal(b.data, "s");
    tarn_buf_free(&b);
    done(&r);
}

/* A URI's user and password appear neither in what is printed nor in what is read back. */
static void logins_are_hidden(void **state)
{
    static const struct {
        const char *given, *shown;
    } uris[] = {
        {"redis://user:p@ss@host:1/2", "redis://host:1/2"},
        {"redis://:p/ss@host", "redis://host"},
        {"redis://pass@host", "redis://host"},
        {"unix://user:pass@/a/b?db=1", "unix:///a/b?db=1"},
        {"unix:///a@b", "unix:///a@b"},
        {"redis://host:1", "redis://host:1"},
        {"redis+sentinel://u:pass@a,b/m?sentinel_password=pass", "redis+sentinel://a,b/m"},
        {"redis+sentinel://a/m/1?sentinel_user=u&sentinel_password=pass", "redis+sentinel://a/m/1"},
        {"redis+sentinel://a/m?sentinel_password=p@pass", "(set)"},
        {"pass", "(set)"},
        {"user:pass@host", "(set)"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(uris); i++) {
        struct run r;
        struct tarn_buf value = {0}, printed = {0};
        bool hidden = strcmp(uris[i].given, uris[i].shown) != 0;
        assert_int_equal(run(&r, "--redis", uris[i].given, NULL)->rc, 0);
        tarn_option_format(&table[6], &r.c, 0, &value);
        assert_string_equal(value.data, uris[i].shown);
        tarn_options_print_conf(&program, &r.c, &r.parsed, &printed);
        assert_null(strstr(printed.data, "pass"));
        assert_null(strstr(printed.data, "p@ss"));
        assert_int_equal(strstr(printed.data, "\n# redis = ") != NULL, hidden);
        tarn_buf_free(&value);
        tarn_buf_free(&printed);
        done(&r);
    }
}

static void set_one(void **state)
{
    struct run r;

    (void)state;
    assert_int_equal(run(&r, NULL)->rc, 0);
    assert_int_equal(tarn_option_assign(&table[4], &r.c, "--heartbeat-ms", "55"), 0);
    assert_int_equal(r.c.beat, 55);
    assert_int_equal(tarn_option_assign(&table[4], &r.c, "--heartbeat-ms", "5"), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "--heartbeat-ms"));
    assert_int_equal(r.c.beat, 55);
    done(&r);
}

/* If mandoc is installed, it must report nothing. */
static void man_page(void **state)
{
    static const struct tarn_program *const subs[] = {&program, &program};
    struct tarn_buf b = {0};
    char command[200];

    (void)state;
    if (system("command -v mandoc >/dev/null 2>&1") != 0) {
        print_message("SKIP: mandoc: not installed\n");
        skip();
    }
    for (size_t nsubs = 0; nsubs <= COUNT(subs); nsubs += COUNT(subs)) {
        b.bytes = 0;
        tarn_options_man(&program, nsubs ? subs : NULL, nsubs, &b);
        assert_non_null(strstr(b.data, ".It Fl b , Fl \\-heartbeat-ms Ar \"MS\"\n"));
        write_conf(b.data);
        snprintf(command, sizeof command, "mandoc -Tlint -W warning %s", conf);
        assert_int_equal(system(command), 0);
    }
    tarn_buf_free(&b);
}

static void markdown(void **state)
{
    struct tarn_buf b = {0};

    (void)state;
    tarn_options_markdown(&program, &b);
    assert_non_null(strstr(b.data, "## tarnd\n"));
    assert_non_null(
        strstr(b.data, "| `-b, --heartbeat-ms MS` | `TARN_HEARTBEAT_MS` | `1000` | 10 to 60000 | How"));
    assert_non_null(strstr(b.data, "| `-j, --json` |  |  |  | JSON in place of text. |"));
    assert_non_null(strstr(b.data, "Shared \\\\secret"));
    tarn_buf_free(&b);
}

#define TEST(name_) cmocka_unit_test_setup_teardown(name_, clear_environment, clear_environment)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults),        TEST(forms_of_flags),    TEST(order_of_sources),
        TEST(lines_of_a_file), TEST(flags_refused),     TEST(variables_refused),
        TEST(lines_refused),   TEST(conf_is_read_back), TEST(secrets_leave_the_command_line),
        TEST(help_text),       TEST(values_as_text),    TEST(set_one),
        TEST(man_page),        TEST(markdown),          TEST(logins_are_hidden),
    };
    return cmocka_run_group_tests(tests, make_conf, remove_conf);
}
