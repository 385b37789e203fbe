/* SPDX-License-Identifier: Apache-2.0 */
/* Moves large tensors in parts, so that the progress line moves. */
#ifndef TARN_CLIENT_CLI_PARTS_H
#define TARN_CLIENT_CLI_PARTS_H

#include "client/cli/cli_text.h"

/* Should a tensor of this size be moved in parts? Only if progress is shown. */
bool cli_parts_wanted(const struct cli_progress *p, uint64_t bytes);
/* Like tarn_put() and tarn_get() with one item of one piece, and report progress. A get returns SIZE if
 * the object was replaced meanwhile; its buffer fits the size that was looked up. */
int cli_put_parts(struct cli *c, struct tarn_item *item, const struct tarn_put_options *o,
                  struct cli_progress *p);
int cli_get_parts(struct cli *c, struct tarn_item *item, struct cli_progress *p);

#endif
