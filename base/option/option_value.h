/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options, for the parser, the file reader and the printers. */
#ifndef TARN_BASE_OPTION_VALUE_H
#define TARN_BASE_OPTION_VALUE_H

#include "base/buf.h"
#include "base/option/option_table.h"

#define TARN_OPTION_ENV_PREFIX "TARN_"
#define TARN_OPTION_NAME_MAX 64

static inline void *tarn_option_at(const struct tarn_option *o, const void *config)
{
    return (char *)(uintptr_t)config + o->offset;
}

/* True when the configuration file and the environment may set it. */
static inline bool tarn_option_settable(const struct tarn_option *o)
{
    return !(o->flags & TARN_OPT_FLAG_ONLY);
}

static inline bool tarn_option_bounded(const struct tarn_option *o)
{
    return o->min != 0 || o->max != 0;
}

/* Sets the value; a LIST grows by one. `where` is the source: "--name", "TARN_NAME", "file:3: name". */
int tarn_option_assign(const struct tarn_option *o, void *config, const char *where, const char *value);
/* Sets a LIST from words separated by blanks, as in the environment and in `initial`. */
int tarn_option_assign_words(const struct tarn_option *o, void *config, const char *where, const char *value);
/* The value as text (secrets and logins hidden unless `reveal`). */
void tarn_option_format(const struct tarn_option *o, const void *config, int reveal, struct tarn_buf *out);
/* Frees what the value owns and zeroes it. */
void tarn_option_clear(const struct tarn_option *o, void *config);

/* "TARN_HEARTBEAT_MS" for "heartbeat-ms". */
void tarn_option_env_name(const struct tarn_option *o, char out[TARN_OPTION_NAME_MAX]);
/* "10 to 60000", "4K to 1T"; "" when there are no bounds. */
void tarn_option_bounds(const struct tarn_option *o, char out[72]);

#endif
