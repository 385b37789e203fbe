/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor file formats: files from our writers are read back, and headers written by numpy.save and the
 * safetensors library are understood. Files that are wrong, end early or hold unsupported tensors are refused
 * with the right code and message. Input always ends at the end of an allocation, so that AddressSanitizer
 * catches a parser that reads too far.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/cli/file.h"

/* --- helpers ------------------------------------------------------------------------------------ */

/* A copy that ends at an unmapped page: reading past its end crashes the test. */
struct fenced {
    unsigned char *pages, *data;
    size_t bytes;
};

static struct fenced fence(const void *data, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    struct fenced f = {.bytes = room + page};

    f.pages = mmap(NULL, f.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.pages != MAP_FAILED);
    assert_int_equal(mprotect(f.pages + room, page, PROT_NONE), 0);
    f.data = f.pages + room - bytes;
    if (bytes)
        memcpy(f.data, data, bytes);
    return f;
}

static int npy_parse_copy(const void *data, size_t bytes, int dtype, struct tarn_file_entry *e)
{
    struct fenced f = fence(data, bytes);
    int rc = tarn_npy_parse(f.data, bytes, dtype, e);

    munmap(f.pages, f.bytes);
    return rc;
}

/* An .npy file of version 1 with this dictionary and `data` zero bytes after it. */
static struct tarn_buf npy_file(const char *dictionary, size_t data)
{
    struct tarn_buf b = {0};
    unsigned char length[2] = {strlen(dictionary) & 0xff, strlen(dictionary) >> 8 & 0xff};
    char zeros[256] = {0};

    assert_true(data <= sizeof zeros);
    tarn_buf_add(&b, "\x93NUMPY\x01\x00", 8);
    tarn_buf_add(&b, length, 2);
    tarn_buf_add(&b, dictionary, strlen(dictionary));
    tarn_buf_add(&b, zeros, data);
    assert_false(b.failed);
    return b;
}

static void npy_fails(const char *dictionary, size_t data, int code, const char *sentence)
{
    struct tarn_buf b = npy_file(dictionary, data);
    struct tarn_file_entry e = {0};
    int rc = npy_parse_copy(b.data, b.bytes, -1, &e);

    if (rc != code || !strstr(tarn_last_error(), sentence))
        fail_msg("%s: got %d \"%s\", want %d \"%s\"", dictionary, rc, tarn_last_error(), code, sentence);
    tarn_buf_free(&b);
}

static int st_parse_copy(const void *data, size_t bytes, struct tarn_file_entry **entries, size_t *n)
{
    struct fenced f = fence(data, bytes);
    int rc = tarn_safetensors_parse(f.data, bytes, entries, n);

    munmap(f.pages, f.bytes);
    return rc;
}

static struct tarn_buf st_file(const char *header, uint64_t length, size_t data)
{
    struct tarn_buf b = {0};
    unsigned char le[8];
    char zeros[256] = {0};

    assert_true(data <= sizeof zeros);
    for (int i = 0; i < 8; i++)
        le[i] = (unsigned char)(length >> (8 * i));
    tarn_buf_add(&b, le, 8);
    tarn_buf_add(&b, header, strlen(header));
    tarn_buf_add(&b, zeros, data);
    assert_false(b.failed);
    return b;
}

static void st_fails(const char *header, size_t data, int code, const char *sentence)
{
    struct tarn_buf b = st_file(header, strlen(header), data);
    struct tarn_file_entry *entries = NULL;
    size_t n = 0;
    int rc = st_parse_copy(b.data, b.bytes, &entries, &n);

    if (rc != code || !strstr(tarn_last_error(), sentence))
        fail_msg("%s: got %d \"%s\", want %d \"%s\"", header, rc, tarn_last_error(), code, sentence);
    assert_null(entries);
    tarn_buf_free(&b);
}

static struct tarn_tensor tensor_of(uint32_t dtype, uint32_t ndim, const uint64_t *shape)
{
    struct tarn_tensor t = {.dtype = dtype, .ndim = ndim, .bytes = tarn_dtype_bytes(dtype)};

    for (uint32_t i = 0; i < ndim; i++) {
        t.shape[i] = shape[i];
        t.bytes *= shape[i];
    }
    return t;
}

static void assert_same_tensor(const struct tarn_tensor *a, const struct tarn_tensor *b)
{
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->ndim, b->ndim);
    assert_int_equal(a->bytes, b->bytes);
    for (uint32_t i = 0; i < a->ndim; i++)
        assert_int_equal(a->shape[i], b->shape[i]);
}

/* --- npy ---------------------------------------------------------------------------------------- */

static void test_npy_round_trip(void **state)
{
    static const uint64_t shapes[][TARN_DIMS_MAX] = {{0}, {7}, {2, 3}, {0, 5}, {1, 2, 1, 2, 1, 2, 1, 2}};
    static const uint32_t ndims[] = {0, 1, 2, 2, 8};

    (void)state;
    for (uint32_t dtype = 0; dtype < TARN_DTYPE_COUNT; dtype++) {
        for (size_t s = 0; s < sizeof ndims / sizeof ndims[0]; s++) {
            struct tarn_tensor t = tensor_of(dtype, ndims[s], shapes[s]);
            struct tarn_buf b = {0};
            struct tarn_file_entry e = {0};
            char zeros[512] = {0};
            assert_int_equal(tarn_npy_header(&t, &b), 0);
            assert_int_equal(b.bytes % 64, 0);
            assert_int_equal(b.data[b.bytes - 1], '\n');
            size_t header = b.bytes;
            tarn_buf_add(&b, zeros, t.bytes);
            /* Void bytes do not say which of the two 8-bit floats they are. */
            bool needs_dtype = dtype == TARN_F8_E4M3 || dtype == TARN_F8_E5M2;
            assert_int_equal(npy_parse_copy(b.data, b.bytes, needs_dtype ? (int)dtype : -1, &e), 0);
            assert_same_tensor(&e.tensor, &t);
            assert_int_equal(e.offset, header);
            tarn_buf_free(&b);
        }
    }
}

/* As written by numpy.save of numpy 1 and 2, by Python 2, and by hand. */
static void test_npy_reads_others(void **state)
{
    static const struct {
        const char *dictionary;
        size_t data;
        uint32_t dtype, ndim;
    } good[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }           \n", 24, TARN_F32, 2},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", 8, TARN_F64, 0},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }\n", 3, TARN_BOOL, 1},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (2L, 3L), }\n", 48, TARN_I64, 2},
        {"{\"shape\":(2,),\"descr\":\"=u2\",\"fortran_order\":False}", 4, TARN_U16, 1},
        {"{'descr': '>u1', 'fortran_order': False, 'shape': (4,), }\n", 4, TARN_U8, 1},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (6,), }\n", 24, TARN_F32, 1},
        {"{'descr': '|V2', 'fortran_order': False, 'shape': (2,), }\n", 4, TARN_BF16, 1},
        {"{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }\n", 4, TARN_BF16, 1},
        {"{'descr': '<c16', 'fortran_order': False, 'shape': (1,), }\n", 16, TARN_C128, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct tarn_buf b = npy_file(good[i].dictionary, good[i].data);
        struct tarn_file_entry e = {0};
        if (npy_parse_copy(b.data, b.bytes, -1, &e) != 0)
            fail_msg("%s: %s", good[i].dictionary, tarn_last_error());
        assert_int_equal(e.tensor.dtype, good[i].dtype);
        assert_int_equal(e.tensor.ndim, good[i].ndim);
        assert_int_equal(e.tensor.bytes, good[i].data);
        tarn_buf_free(&b);
    }
}

static void test_npy_versions(void **state)
{
    static const char dictionary[] = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }\n";
    struct tarn_file_entry e;

    (void)state;
    for (char version = 2; version <= 3; version++) {
        struct tarn_buf b = {0};
        unsigned char length[4] = {sizeof dictionary - 1};
        tarn_buf_add(&b, "\x93NUMPY", 6);
        tarn_buf_add(&b, &version, 1);
        tarn_buf_add(&b, "", 1);
        tarn_buf_add(&b, length, 4);
        tarn_buf_add(&b, dictionary, sizeof dictionary - 1);
        tarn_buf_add(&b, "abcd", 4);
        assert_int_equal(npy_parse_copy(b.data, b.bytes, -1, &e), 0);
        assert_int_equal(e.offset, 12 + sizeof dictionary - 1);
        b.data[6] = 4;
        assert_int_equal(npy_parse_copy(b.data, b.bytes, -1, &e), TARN_E_UNSUPPORTED);
        b.data[6] = version;
        memset(b.data + 8, 0xff, 4);
        assert_int_equal(npy_parse_copy(b.data, b.bytes, -1, &e), TARN_E_FORMAT);
        tarn_buf_free(&b);
    }
}

static void test_npy_refuses(void **state)
{
    (void)state;
    npy_fails("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", 8, TARN_E_UNSUPPORTED,
              "big-endian");
    npy_fails("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }", 8, TARN_E_UNSUPPORTED, "Fortran");
    npy_fails("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8, TARN_E_UNSUPPORTED,
              "structured");
    npy_fails("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", 8, TARN_E_UNSUPPORTED, "convert");
    npy_fails("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", 16, TARN_E_UNSUPPORTED,
              "kind 'U'");
    npy_fails("{'descr': '|V1', 'fortran_order': False, 'shape': (2,), }", 2, TARN_E_UNSUPPORTED, "--dtype");
    npy_fails("{'descr': '|V3', 'fortran_order': False, 'shape': (2,), }", 6, TARN_E_UNSUPPORTED, "void");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4,
              TARN_E_UNSUPPORTED, "more than 8");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 7, TARN_E_FORMAT, "truncated");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 9, TARN_E_FORMAT, "9 bytes");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 0,
              TARN_E_FORMAT, "truncated");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 0,
              TARN_E_FORMAT, "dimension");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 0, TARN_E_FORMAT, "dimension");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': [2], }", 8, TARN_E_FORMAT, "tuple");
    npy_fails("{'descr': '<f4', 'fortran_order': None, 'shape': (2,), }", 8, TARN_E_FORMAT, "fortran_order");
    npy_fails("{'descr': '<f4', 'shape': (2,), }", 8, TARN_E_FORMAT, "missing");
    npy_fails("{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", 8, TARN_E_FORMAT,
              "two");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", 8, TARN_E_FORMAT, "unknown");
    npy_fails("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8, TARN_E_FORMAT, "follows");
    npy_fails("{'descr': 'f4', 'fortran_order': False, 'shape': (2,)}", 8, TARN_E_UNSUPPORTED, "descr");
    npy_fails("{'descr': '<\\x66', 'fortran_order': False, 'shape': (2,)}", 8, TARN_E_FORMAT, "descr");
    npy_fails("", 0, TARN_E_FORMAT, "{");
}

static void test_npy_given_dtype(void **state)
{
    struct tarn_buf b = npy_file("{'descr': '|V2', 'fortran_order': False, 'shape': (2,), }", 4);
    struct tarn_file_entry e;

    (void)state;
    assert_int_equal(npy_parse_copy(b.data, b.bytes, TARN_F16, &e), 0);
    assert_int_equal(e.tensor.dtype, TARN_F16);
    assert_int_equal(npy_parse_copy(b.data, b.bytes, TARN_F32, &e), TARN_E_INVALID);
    tarn_buf_free(&b);
    b = npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 4);
    assert_int_equal(npy_parse_copy(b.data, b.bytes, TARN_F32, &e), 0);
    assert_int_equal(npy_parse_copy(b.data, b.bytes, TARN_I32, &e), TARN_E_INVALID);
    tarn_buf_free(&b);
}

static void test_npy_truncated_everywhere(void **state)
{
    struct tarn_tensor t = tensor_of(TARN_F32, 2, (const uint64_t[]){2, 3});
    struct tarn_buf b = {0};
    struct tarn_file_entry e;

    (void)state;
    assert_int_equal(tarn_npy_header(&t, &b), 0);
    tarn_buf_add(&b, "abcdefghijklmnopqrstuvwx", 24);
    for (size_t bytes = 0; bytes < b.bytes; bytes++) {
        if (npy_parse_copy(b.data, bytes, -1, &e) != TARN_E_FORMAT)
            fail_msg("%zu of %zu bytes were accepted", bytes, b.bytes);
        if (!strstr(tarn_last_error(), bytes < 10 ? "npy" : "truncated"))
            fail_msg("%zu of %zu bytes: %s", bytes, b.bytes, tarn_last_error());
    }
    assert_int_equal(npy_parse_copy(b.data, b.bytes, -1, &e), 0);
    tarn_buf_free(&b);
}

/* --- safetensors -------------------------------------------------------------------------------- */

#define F32_2 "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static void test_st_reads_others(void **state)
{
    /* Out of order, with metadata, an empty tensor, a scalar, and padding. */
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[8,"
        "16]},"
        "\"a\":" F32_2 ",\"empty\":{\"dtype\":\"I64\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
        "\"s/\\u00e9\":{\"dtype\":\"F8_E5M2\",\"shape\":[],\"data_offsets\":[16,17]}}      ";
    struct tarn_buf b = st_file(header, strlen(header), 17);
    struct tarn_file_entry *e = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(st_parse_copy(b.data, b.bytes, &e, &n), 0);
    assert_int_equal(n, 5);
    assert_string_equal(e[0].name, "__metadata__");
    assert_string_equal(e[1].name, "a");
    assert_string_equal(e[2].name, "empty");
    assert_string_equal(e[3].name, "b");
    assert_string_equal(e[4].name, "s/\xc3\xa9");
    assert_int_equal(e[1].offset, 8 + strlen(header));
    assert_int_equal(e[3].offset, 8 + strlen(header) + 8);
    assert_int_equal(e[3].tensor.dtype, TARN_BF16);
    assert_int_equal(e[4].tensor.ndim, 0);
    assert_int_equal(e[4].tensor.dtype, TARN_F8_E5M2);
    tarn_file_entries_free(e, n);
    tarn_buf_free(&b);
}

static void test_st_round_trip(void **state)
{
    static const uint64_t shape[] = {3, 5};
    struct tarn_file_entry in[TARN_DTYPE_COUNT] = {0}, *out = NULL;
    struct tarn_buf b = {0};
    size_t n = 0, count = 0;
    uint64_t end = 0;

    (void)state;
    for (uint32_t dtype = 0; dtype < TARN_DTYPE_COUNT; dtype++) {
        if (dtype == TARN_C128)
            continue;
        in[count].name = (char *)tarn_dtype_name(dtype);
        in[count++].tensor = tensor_of(dtype, 2, shape);
    }
    assert_int_equal(tarn_safetensors_header(in, count, &b), 0);
    assert_int_equal(b.bytes % 64, 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(in[i].offset % tarn_dtype_bytes(in[i].tensor.dtype), 0);
        end = in[i].offset + in[i].tensor.bytes > end ? in[i].offset + in[i].tensor.bytes : end;
    }
    while (b.bytes < end)
        tarn_buf_add(&b, "x", 1);
    assert_int_equal(st_parse_copy(b.data, b.bytes, &out, &n), 0);
    assert_int_equal(n, count);
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        while (j < count && strcmp(in[j].name, out[i].name) != 0)
            j++;
        assert_in_range(j, 0, count - 1);
        assert_same_tensor(&out[i].tensor, &in[j].tensor);
        assert_int_equal(out[i].offset, in[j].offset);
    }
    tarn_file_entries_free(out, n);
    tarn_buf_free(&b);
}

/* The metadata text comes back byte for byte, whatever surrounds it, with and without tensors. */
static void test_st_metadata(void **state)
{
    static const char *const texts[] = {"{}", "{\"format\":\"pt\"}",
                                        "{ \"a\\\"}{\" :\n\"\\u00e9[\" , \"b\":\"\" }"};
    static const char *const around[][2] = {
        {"{\"__metadata__\":", "}"},
        {"{\"__metadata__\" : ", ",\"a\":" F32_2 "}"},
        {"{\"__metadata__x\":" F32_2 ",\"__metadata__\":", "}"},
    };

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < 3; i++) {
            struct tarn_file_entry *in = NULL, *out = NULL;
            struct tarn_buf header = {0}, b = {0};
            size_t n = 0, nout = 0, data = i ? 8 : 0;

            tarn_buf_printf(&header, "%s%s%s", around[i][0], texts[t], around[i][1]);
            struct tarn_buf file = st_file(header.data, header.bytes, data);
            assert_int_equal(st_parse_copy(file.data, file.bytes, &in, &n), 0);
            assert_int_equal(n, i ? 2 : 1);
            assert_true(tarn_safetensors_is_metadata(&in[0]));
            assert_int_equal(in[0].tensor.bytes, strlen(texts[t]));
            assert_memory_equal(file.data + in[0].offset, texts[t], strlen(texts[t]));

            assert_int_equal(tarn_safetensors_header(in, n, &b), 0);
            assert_int_equal(b.bytes % 64, 0);
            memcpy(b.data + in[0].offset, texts[t], strlen(texts[t]));
            tarn_buf_add(&b, "12345678", data);
            assert_int_equal(st_parse_copy(b.data, b.bytes, &out, &nout), 0);
            assert_int_equal(nout, n);
            assert_int_equal(out[0].offset, in[0].offset);
            assert_memory_equal(b.data + out[0].offset, texts[t], strlen(texts[t]));
            tarn_file_entries_free(in, n);
            tarn_file_entries_free(out, nout);
            tarn_buf_free(&header);
            tarn_buf_free(&file);
            tarn_buf_free(&b);
        }
    }
    st_fails("{\"__\\u006detadata__\":{}}", 0, TARN_E_FORMAT, "escapes");
}

static void test_st_writer_refuses(void **state)
{
    struct tarn_tensor t = tensor_of(TARN_F32, 0, NULL), c128 = tensor_of(TARN_C128, 0, NULL);
    struct tarn_file_entry twice[] = {{.name = "a", .tensor = t}, {.name = "a", .tensor = t}};
    struct tarn_file_entry reserved[] = {{.name = "__metadata__", .tensor = t}};
    struct tarn_file_entry binary[] = {{.name = "\xff\xfe", .tensor = t}};
    struct tarn_file_entry complex_[] = {{.name = "c", .tensor = c128}};
    struct tarn_buf b = {0};

    (void)state;
    assert_int_equal(tarn_safetensors_header(twice, 2, &b), TARN_E_INVALID);
    assert_int_equal(tarn_safetensors_header(reserved, 1, &b), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "reserved"));
    assert_int_equal(tarn_safetensors_header(binary, 1, &b), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "UTF-8"));
    assert_int_equal(tarn_safetensors_header(complex_, 1, &b), TARN_E_UNSUPPORTED);
    tarn_buf_free(&b);
}

static void test_st_lying_offsets(void **state)
{
    (void)state;
#define AT(offsets_) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets_ "}}"
    st_fails(AT("[0,9]"), 8, TARN_E_FORMAT, "truncated");
    st_fails(AT("[0,8]"), 7, TARN_E_FORMAT, "truncated");
    st_fails(AT("[0,8]"), 9, TARN_E_FORMAT, "follow the last");
    st_fails(AT("[1,9]"), 9, TARN_E_FORMAT, "gap");
    st_fails(AT("[8,0]"), 8, TARN_E_FORMAT, "ends before");
    st_fails(AT("[-8,0]"), 8, TARN_E_FORMAT, "two numbers");
    st_fails(AT("[0,8,16]"), 16, TARN_E_FORMAT, "two numbers");
    st_fails(AT("[0]"), 8, TARN_E_FORMAT, "two numbers");
    st_fails(AT("[0,8.0]"), 8, TARN_E_FORMAT, "two numbers");
    st_fails(AT("[0,\"8\"]"), 8, TARN_E_FORMAT, "two numbers");
    st_fails(AT("{}"), 8, TARN_E_FORMAT, "two numbers");
    st_fails(AT("[9223372036854775800,9223372036854775807]"), 8, TARN_E_FORMAT, "truncated");
    st_fails(AT("[0,18446744073709551615]"), 8, TARN_E_FORMAT, "header");
    st_fails(AT("[0,4]"), 4, TARN_E_FORMAT, "not those of f32");
    st_fails("{\"a\":" F32_2 ",\"b\":" F32_2 "}", 8, TARN_E_FORMAT, "within the one before");
    st_fails("{\"a\":" F32_2 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}", 8,
             TARN_E_FORMAT, "within the one before");
    st_fails("{\"a\":" F32_2 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}", 10,
             TARN_E_FORMAT, "gap");
#undef AT
}

static void test_st_lying_shapes(void **state)
{
    (void)state;
#define OF(shape_) "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape_ ",\"data_offsets\":[0,8]}}"
    st_fails(OF("[3]"), 8, TARN_E_FORMAT, "not those of f32 (3)");
    st_fails(OF("[-2]"), 8, TARN_E_FORMAT, "shape");
    st_fails(OF("[2.0]"), 8, TARN_E_FORMAT, "shape");
    st_fails(OF("2"), 8, TARN_E_FORMAT, "shape");
    st_fails(OF("[4294967296,4294967296]"), 8, TARN_E_FORMAT, "not those");
    st_fails(OF("[4611686018427387904,4,2]"), 8, TARN_E_FORMAT, "not those");
    st_fails(OF("[2,1,1,1,1,1,1,1,1]"), 8, TARN_E_UNSUPPORTED, "9 dimensions");
#undef OF
}

static void test_st_malformed(void **state)
{
    struct tarn_buf deep = {0};

    (void)state;
    st_fails("[]", 0, TARN_E_FORMAT, "no JSON object");
    st_fails("{\"a\":" F32_2, 8, TARN_E_FORMAT, "header");
    st_fails("{\"a\":1}", 8, TARN_E_FORMAT, "no object");
    st_fails("{\"a\":{}}", 8, TARN_E_FORMAT, "dtype");
    st_fails("{\"a\":{\"dtype\":\"F32\"}}", 8, TARN_E_FORMAT, "shape");
    st_fails("{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,8]}}", 8, TARN_E_FORMAT, "dtype");
    st_fails("{\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, TARN_E_UNSUPPORTED, "F4");
    st_fails("{\"a\":{\"dtype\":\"F32F32F32F32F32F32F32\",\"shape\":[],\"data_offsets\":[0,8]}}", 8,
             TARN_E_UNSUPPORTED, "F32");
    st_fails("{\"a\":" F32_2 ",\"a\":" F32_2 "}", 8, TARN_E_FORMAT, "header");
    st_fails("{\"a\\u0000b\":" F32_2 "}", 8, TARN_E_FORMAT, "header");
    st_fails("{\"\xff\":" F32_2 "}", 8, TARN_E_FORMAT, "header");
    st_fails("{\"__metadata__\":[],\"a\":" F32_2 "}", 8, TARN_E_FORMAT, "__metadata__");
    st_fails("{\"__metadata__\":{\"x\":1},\"a\":" F32_2 "}", 8, TARN_E_FORMAT, "__metadata__");
    st_fails("{\"a\":" F32_2 "} x", 8, TARN_E_FORMAT, "header");
    st_fails("{\"\\u001b[31mred\":1}", 8, TARN_E_FORMAT, "%1B[31mred");
    tarn_buf_printf(&deep, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        tarn_buf_printf(&deep, "[");
    st_fails(deep.data, 0, TARN_E_FORMAT, "header");
    tarn_buf_free(&deep);
}

static void test_st_lying_lengths(void **state)
{
    static const uint64_t lengths[] = {0,         1,         1000,       100000000,
                                       100000001, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    struct tarn_file_entry *entries = NULL;
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct tarn_buf b = st_file("{\"a\":" F32_2 "}", lengths[i], 8);
        assert_int_equal(st_parse_copy(b.data, b.bytes, &entries, &n), TARN_E_FORMAT);
        assert_null(entries);
        tarn_buf_free(&b);
    }
}

static void test_st_truncated_everywhere(void **state)
{
    struct tarn_tensor t = tensor_of(TARN_F32, 2, (const uint64_t[]){2, 3});
    struct tarn_file_entry in[] = {{.name = "a", .tensor = t}, {.name = "b", .tensor = t}}, *out = NULL;
    struct tarn_buf b = {0};
    size_t n = 0;

    (void)state;
    assert_int_equal(tarn_safetensors_header(in, 2, &b), 0);
    for (size_t i = 0; i < 2 * t.bytes; i++)
        tarn_buf_add(&b, "x", 1);
    for (size_t bytes = 0; bytes < b.bytes; bytes++) {
        if (st_parse_copy(b.data, bytes, &out, &n) != TARN_E_FORMAT)
            fail_msg("%zu of %zu bytes were accepted", bytes, b.bytes);
        if (!strstr(tarn_last_error(), "truncated"))
            fail_msg("%zu of %zu bytes: %s", bytes, b.bytes, tarn_last_error());
    }
    assert_int_equal(st_parse_copy(b.data, b.bytes, &out, &n), 0);
    tarn_file_entries_free(out, n);
    tarn_buf_free(&b);
}

/* --- raw ---------------------------------------------------------------------------------------- */

static void test_raw(void **state)
{
    struct tarn_file_hint plain = {.dtype = -1}, f16 = {.dtype = TARN_F16},
                          shaped = {.dtype = TARN_F16, .shape = "2,3"};
    struct tarn_tensor t;

    (void)state;
    assert_int_equal(tarn_raw_describe(5, &plain, &t), 0);
    assert_int_equal(t.dtype, TARN_U8);
    assert_int_equal(t.shape[0], 5);
    assert_int_equal(tarn_raw_describe(0, &plain, &t), 0);
    assert_int_equal(tarn_raw_describe(6, &f16, &t), 0);
    assert_int_equal(t.shape[0], 3);
    assert_int_equal(tarn_raw_describe(7, &f16, &t), TARN_E_INVALID);
    assert_int_equal(tarn_raw_describe(12, &shaped, &t), 0);
    assert_int_equal(t.ndim, 2);
    assert_int_equal(tarn_raw_describe(13, &shaped, &t), TARN_E_INVALID);
    shaped.shape = "2,x";
    assert_int_equal(tarn_raw_describe(12, &shaped, &t), TARN_E_INVALID);
}

/* --- files -------------------------------------------------------------------------------------- */

struct folder {
    char path[64], file[80];
};

static struct folder make_folder(const char *name)
{
    struct folder f = {.path = "/tmp/tarn-test-files-XXXXXX"};

    assert_non_null(mkdtemp(f.path));
    snprintf(f.file, sizeof f.file, "%s/%s", f.path, name);
    return f;
}

static void test_file_formats(void **state)
{
    (void)state;
    assert_int_equal(tarn_file_format_of("a/b.npy"), TARN_FILE_NPY);
    assert_int_equal(tarn_file_format_of("a.SafeTensors"), TARN_FILE_SAFETENSORS);
    assert_int_equal(tarn_file_format_of("a.npy/b"), TARN_FILE_RAW);
    assert_int_equal(tarn_file_format_of("npy"), TARN_FILE_RAW);
    assert_int_equal(tarn_file_format_of("a.b/.hidden"), TARN_FILE_RAW);
    assert_int_equal(tarn_file_format_of("a."), TARN_FILE_RAW);
    assert_int_equal(tarn_file_format_of("a.npy.Raw"), TARN_FILE_RAW);
    static const char *const unknown[] = {"m.pt", "m.npz", "d/m.bin", "layer.0"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_int_equal(tarn_file_format_of(unknown[i]), TARN_E_INVALID);
        assert_non_null(strstr(tarn_last_error(), unknown[i]));
        assert_non_null(strstr(tarn_last_error(), "--format raw"));
    }
    assert_int_equal(tarn_file_format_parse("raw"), TARN_FILE_RAW);
    assert_int_equal(tarn_file_format_parse("safetensor"), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "did you mean safetensors?"));
}

static void test_file_write_and_read(void **state)
{
    struct folder dir = make_folder("t.npy");
    struct tarn_tensor t = tensor_of(TARN_I32, 1, (const uint64_t[]){1000});
    struct tarn_file_hint hint = {.dtype = -1};
    struct tarn_file_out out;
    struct tarn_file in;
    struct tarn_buf header = {0};
    struct stat st;

    (void)state;
    assert_int_equal(tarn_npy_header(&t, &header), 0);
    assert_int_equal(tarn_file_create(dir.file, header.bytes + t.bytes, &out), 0);
    memcpy(out.map, header.data, header.bytes);
    for (int32_t i = 0; i < 1000; i++)
        memcpy(out.map + header.bytes + 4 * i, &i, 4);
    /* The file does not exist before the commit. */
    assert_int_equal(access(dir.file, F_OK), -1);
    assert_int_equal(tarn_file_commit(&out), 0);
    assert_int_equal(stat(dir.file, &st), 0);
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    assert_int_equal(tarn_file_open(dir.file, TARN_FILE_NPY, &hint, &in), 0);
    assert_int_equal(in.n, 1);
    assert_true(in.mapped);
    assert_same_tensor(&in.entries[0].tensor, &t);
    for (int32_t i = 0; i < 1000; i++)
        assert_memory_equal(in.data + in.entries[0].offset + 4 * i, &i, 4);
    tarn_file_close(&in);
    tarn_buf_free(&header);
    unlink(dir.file);
    assert_int_equal(rmdir(dir.path), 0);
}

static void test_file_discard_leaves_nothing(void **state)
{
    struct folder dir = make_folder("t");
    struct tarn_file_out out;

    (void)state;
    assert_int_equal(tarn_file_create(dir.file, 10, &out), 0);
    tarn_file_discard(&out);
    assert_int_equal(tarn_file_create(dir.file, 1ull << 62, &out), TARN_E_SYSTEM);
    /* rmdir only removes an empty directory. */
    assert_int_equal(rmdir(dir.path), 0);
    assert_int_equal(tarn_file_create(dir.file, 10, &out), TARN_E_INVALID);
}

static void test_file_open_errors(void **state)
{
    struct folder dir = make_folder("bad.npy");
    struct tarn_file_hint hint = {.dtype = -1};
    struct tarn_file in;

    (void)state;
    assert_int_equal(tarn_file_open(dir.file, TARN_FILE_NPY, &hint, &in), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), dir.file));
    assert_int_equal(tarn_file_open(dir.path, TARN_FILE_RAW, &hint, &in), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "directory"));
    int fd = open(dir.file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tarn_file_open(dir.file, TARN_FILE_NPY, &hint, &in), TARN_E_FORMAT);
    assert_non_null(strstr(tarn_last_error(), dir.file));
    assert_int_equal(tarn_file_open(dir.file, TARN_FILE_SAFETENSORS, &hint, &in), TARN_E_FORMAT);
    assert_int_equal(tarn_file_open(dir.file, TARN_FILE_RAW, &hint, &in), 0);
    assert_int_equal(in.entries[0].tensor.bytes, 0);
    tarn_file_close(&in);
    unlink(dir.file);
    assert_int_equal(rmdir(dir.path), 0);
}

static void test_file_pipe(void **state)
{
    struct tarn_file_hint hint = {.dtype = -1};
    struct tarn_file in;
    char path[32];
    int fds[2];

    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(write(fds[1], "hello", 5), 5);
    close(fds[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
    assert_int_equal(tarn_file_open(path, TARN_FILE_RAW, &hint, &in), 0);
    assert_false(in.mapped);
    assert_int_equal(in.bytes, 5);
    assert_memory_equal(in.data, "hello", 5);
    tarn_file_close(&in);
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy_round_trip),
        cmocka_unit_test(test_npy_reads_others),
        cmocka_unit_test(test_npy_versions),
        cmocka_unit_test(test_npy_refuses),
        cmocka_unit_test(test_npy_given_dtype),
        cmocka_unit_test(test_npy_truncated_everywhere),
        cmocka_unit_test(test_st_reads_others),
        cmocka_unit_test(test_st_round_trip),
        cmocka_unit_test(test_st_metadata),
        cmocka_unit_test(test_st_writer_refuses),
        cmocka_unit_test(test_st_lying_offsets),
        cmocka_unit_test(test_st_lying_shapes),
        cmocka_unit_test(test_st_malformed),
        cmocka_unit_test(test_st_lying_lengths),
        cmocka_unit_test(test_st_truncated_everywhere),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_file_formats),
        cmocka_unit_test(test_file_write_and_read),
        cmocka_unit_test(test_file_discard_leaves_nothing),
        cmocka_unit_test(test_file_open_errors),
        cmocka_unit_test(test_file_pipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
