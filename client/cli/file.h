/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in files: NumPy's .npy, Hugging Face's .safetensors, and raw bytes.
 *
 * Reading: the file is mapped, its header says where in it which tensor lies, and puts read straight
 * from the mapping. The parsers take (data, bytes) and trust nothing: a file that lies about lengths,
 * offsets or shapes is TARN_E_FORMAT, one that is sound but holds what tarn cannot (big-endian, Fortran
 * order, structured types) is TARN_E_UNSUPPORTED, each with a sentence.
 *
 * Writing: the sizes are known before the bytes are. The header is made first, the output file gets
 * its full length, and gets write straight into its mapping. The file appears under its name in one
 * step, when it is complete.
 */
#ifndef TARN_CLIENT_FILE_H
#define TARN_CLIENT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/buf.h"

enum tarn_file_format { TARN_FILE_RAW, TARN_FILE_NPY, TARN_FILE_SAFETENSORS };

/* The format called `name`, or INVALID with the names there are. */
int tarn_file_format_parse(const char *name);
/* By the ending of the path; RAW when it has none. INVALID when nobody knows it (.pt, .npz, .bin). */
int tarn_file_format_of(const char *path);

/* One tensor of a file. */
struct tarn_file_entry {
    char *name; /* UTF-8, owned; NULL in formats without names */
    struct tarn_tensor tensor;
    uint64_t offset; /* of its bytes, from the start of the file */
};

struct tarn_file {
    const unsigned char *data;
    uint64_t bytes;
    bool mapped; /* else `data` was read into memory: a pipe */
    struct tarn_file_entry *entries;
    size_t n;
};

/* What a reader is told about files that do not say it themselves. */
struct tarn_file_hint {
    int dtype;         /* raw files and void .npy elements; below 0: not told */
    const char *shape; /* raw files, as text; NULL: one dimension */
};

/* Opens and parses; "-" is standard input. INVALID (no such file), FORMAT, UNSUPPORTED, SYSTEM. */
int tarn_file_open(const char *path, enum tarn_file_format format, const struct tarn_file_hint *hint,
                   struct tarn_file *f);
void tarn_file_close(struct tarn_file *f);

/* --- parsers (fuzzed) --------------------------------------------------------------------------- */

/* An .npy of version 1, 2 or 3. One-byte void elements need `dtype`; two-byte ones are bf16 without. */
int tarn_npy_parse(const void *data, size_t bytes, int dtype, struct tarn_file_entry *e);
/*
 * Entries come in the order of their offsets, before them the text of the file's metadata, where it has some;
 * free them with tarn_file_entries_free().
 */
int tarn_safetensors_parse(const void *data, size_t bytes, struct tarn_file_entry **entries_p, size_t *n_p);
/* Is it that text? */
bool tarn_safetensors_is_metadata(const struct tarn_file_entry *e);
void tarn_file_entries_free(struct tarn_file_entry *entries, size_t n);
/* Describes raw bytes: u8 in one dimension unless told otherwise. INVALID when the size does not fit. */
int tarn_raw_describe(uint64_t bytes, const struct tarn_file_hint *hint, struct tarn_tensor *t);

/* --- writers ------------------------------------------------------------------------------------ */

/* Appends the header of an .npy, padded so that the data behind it begins at a multiple of 64. */
int tarn_npy_header(const struct tarn_tensor *t, struct tarn_buf *out);
/*
 * Appends the header of a .safetensors and sets the entries' offsets: larger elements first, so that
 * all are aligned, and the data begins at a multiple of 64. The metadata's place is in the header, and is
 * left blank. INVALID: a name twice or not UTF-8.
 */
int tarn_safetensors_header(struct tarn_file_entry *entries, size_t n, struct tarn_buf *out);

/* An output file being written. */
struct tarn_file_out {
    int fd;
    bool named; /* it lies under its temporary name */
    char *path, *temporary;
    unsigned char *map; /* NULL when bytes is 0 */
    uint64_t bytes;
};

int tarn_file_create(const char *path, uint64_t bytes, struct tarn_file_out *o);
/*
 * Optional, before a part of the mapping is written: maps its pages in one go instead of by one fault
 * each, which on some file systems is several times as fast.
 */
void tarn_file_prefault(void *addr, uint64_t bytes);
/* Gives the file its name; discard removes it instead. Both free what `o` holds. */
int tarn_file_commit(struct tarn_file_out *o);
void tarn_file_discard(struct tarn_file_out *o);

#endif
