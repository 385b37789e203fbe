/* SPDX-License-Identifier: Apache-2.0 */
/* Large tensors in parts, so that the progress shows. */
#ifndef TARN_CLIENT_CLI_PARTS_H
#define TARN_CLIENT_CLI_PARTS_H

#include "client/cli/cli_text.h"

/* Is a tensor of so many bytes to be moved in parts? Only where somebody sees the progress. */
bool cli_parts_wanted(const struct cli_progress *p, uint64_t bytes);
/* As tarn_put() and tarn_get() with one item of one piece. Tell the progress. A get is SIZE when the object
 * was replaced meanwhile; its buffer has the object's size. */
int cli_put_parts(struct cli *c, struct tarn_item *item, const struct tarn_put_options *o,
                  struct cli_progress *p);
int cli_get_parts(struct cli *c, struct tarn_item *item, struct cli_progress *p);

#endif
