/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of the conformance suite that only windows have. */
#ifndef TARN_TESTS_WINDOWS_H
#define TARN_TESTS_WINDOWS_H

#include "tests/conformance/place.h"

void runs_there_and_pieces_here(struct place *p);
void moves_of_a_batch_have_a_status_each(struct place *p);
void ranges_at_and_past_the_end(struct place *p);
void lease_for_reading_is_not_written(struct place *p);
void generation_of_another_lease(struct place *p);
void nothing_goes_after_a_recall(struct place *p);
void recalled_under_readers(struct place *p);
void recalled_under_writers(struct place *p);
void notification_has_its_bytes(struct place *p);
void notifications_of_a_killed_writer(struct place *p);

/* The second process of the last case. */
void tell_until_killed(struct place *p);

#endif
