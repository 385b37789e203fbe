/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in files: NumPy's .npy, Hugging Face's .safetensors, and raw bytes.
 *
 * Reading: the file is mapped. Its header says where each tensor lies. Puts read straight from the mapping.
 * The parsers take (data, bytes) and trust nothing. A file with wrong lengths, offsets or shapes is
 * TARN_E_FORMAT. A sound file with content that tarn does not support (big-endian, Fortran order, structured
 * types) is TARN_E_UNSUPPORTED. Each error has a sentence.
 *
 * Writing: sizes are known before the bytes. The header is made first, then the output file gets its full
 * length, and gets write straight into its mapping. The complete file appears under its name in one step.
 */
#ifndef TARN_CLIENT_FILE_H
#define TARN_CLIENT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/buf.h"

enum tarn_file_format { TARN_FILE_RAW, TARN_FILE_NPY, TARN_FILE_SAFETENSORS };

/* The format with this name. INVALID lists the known ones. */
int tarn_file_format_parse(const char *name);
/* The format for the path's ending; RAW without one. INVALID for unknown endings (.pt, .npz, .bin). */
int tarn_file_format_of(const char *path);

/* One tensor of a file. */
struct tarn_file_entry {
    char *name; /* UTF-8, owned; NULL in formats without names */
    struct tarn_tensor tensor;
    uint64_t offset; /* of its bytes, in the file */
};

struct tarn_file {
    const unsigned char *data;
    uint64_t bytes;
    bool mapped; /* false: `data` was read into memory, from a pipe */
    struct tarn_file_entry *entries;
    size_t n;
};

/* What the user says about files that do not describe themselves. */
struct tarn_file_hint {
    int dtype;         /* for raw files and void .npy elements; below 0: not given */
    const char *shape; /* for raw files, as text; NULL: one dimension */
};

/* Opens and parses; "-" is standard input. INVALID (no such file), FORMAT, UNSUPPORTED, SYSTEM. */
int tarn_file_open(const char *path, enum tarn_file_format format, const struct tarn_file_hint *hint,
                   struct tarn_file *f);
void tarn_file_close(struct tarn_file *f);

/* --- parsers (fuzzed) --------------------------------------------------------------------------- */

/* Parses .npy versions 1, 2 and 3. One-byte void elements need `dtype`; two-byte ones default to bf16. */
int tarn_npy_parse(const void *data, size_t bytes, int dtype, struct tarn_file_entry *e);
/*
 * Entries come in the order of their offsets. If the file has metadata, its text is the first entry. Free
 * them with tarn_file_entries_free().
 */
int tarn_safetensors_parse(const void *data, size_t bytes, struct tarn_file_entry **entries_p, size_t *n_p);
/* Is this entry the metadata? */
bool tarn_safetensors_is_metadata(const struct tarn_file_entry *e);
void tarn_file_entries_free(struct tarn_file_entry *entries, size_t n);
/* Describes raw bytes: one dimension of u8 unless the hint says otherwise. INVALID if the size does not
 * fit. */
int tarn_raw_describe(uint64_t bytes, const struct tarn_file_hint *hint, struct tarn_tensor *t);

/* --- writers ------------------------------------------------------------------------------------ */

/* Appends an .npy header, padded so that the data behind it begins at a multiple of 64. */
int tarn_npy_header(const struct tarn_tensor *t, struct tarn_buf *out);
/*
 * Appends a .safetensors header and sets the entries' offsets. Larger elements come first, so all are
 * aligned; the data begins at a multiple of 64. The metadata's place in the header is left blank. INVALID:
 * a name occurs twice or is not UTF-8.
 */
int tarn_safetensors_header(struct tarn_file_entry *entries, size_t n, struct tarn_buf *out);

/* An output file being written. */
struct tarn_file_out {
    int fd;
    bool named; /* the file has its temporary name */
    bool sync;  /* space is not reserved for certain: errors may come late */
    char *path, *temporary;
    unsigned char *map; /* NULL when bytes is 0 */
    uint64_t bytes;
};

int tarn_file_create(const char *path, uint64_t bytes, struct tarn_file_out *o);
/*
 * Optional, before writing a part of the mapping: maps its pages at once instead of fault by fault.
 * Several times as fast on some file systems.
 */
void tarn_file_prefault(void *addr, uint64_t bytes);
/* Commit gives the file its name; discard removes the file. Both free what `o` holds. */
int tarn_file_commit(struct tarn_file_out *o);
void tarn_file_discard(struct tarn_file_out *o);

#endif
