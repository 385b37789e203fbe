/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How soon the objects of a pool are used again: learned from a sample of keys, by class and age.
 *
 * A key is in the sample or not by its hash, so the sample sees all uses of a key. It stays there after the
 * object was evicted: a put of the same key is then a use, too. For every class and bucket of ages are
 * counted: uses (events) and the time that keys spent there unused (exposure). Events by exposure is the
 * hazard, the chance of a use within the next tick.
 *
 * The worth of an object is what it promises for its room: the chance that it is used within some time, by
 * the time that it will stay for that, at the best choice of the time. It may rise with age: a new object may
 * be worth less than one that has waited for a minute, where uses come after minutes. This is the index of J.
 * C. Gittins ("Bandit processes and dynamic allocation indices", J. R. Stat. Soc. B 41, 1979) for "used or
 * not"; the counting by age follows N. Beckmann, H. Chen, A. Cidon ("LHD", NSDI 2018).
 *
 * Belongs to one pool and one thread (control). Memory: 16 384 keys at most, about 1.5 MB.
 */
#ifndef TARN_SERVER_REUSE_H
#define TARN_SERVER_REUSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TARN_CLASSES 16
#define TARN_CLASS_STEP 2 /* to the class of objects like these that were used more */
#define TARN_AGES 64      /* two buckets a doubling, the first two of 1 tick */

struct tarn_reuse;

/* The bucket of an age in ticks, and where a bucket begins. */
static inline uint32_t tarn_age_bucket(uint32_t age)
{
    if (age < 2)
        return age;
    uint32_t doubling = 31 - (uint32_t)__builtin_clz(age);
    return 2 * doubling + (age >> (doubling - 1) & 1);
}

static inline double tarn_age_begin(uint32_t bucket)
{
    if (bucket < 2)
        return bucket;
    double from = (double)(1ull << bucket / 2);
    return bucket % 2 ? 1.5 * from : from;
}

/* touch: time of last use in ticks, by slot. NO_MEMORY. */
int tarn_reuse_new(const _Atomic uint32_t *touch, struct tarn_reuse **r_p);
/* NULL is allowed. */
void tarn_reuse_free(struct tarn_reuse *r);

/* An object was put at tick `now`. key: hash of its key. class is its class from now on. */
void tarn_reuse_put(struct tarn_reuse *r, uint32_t key, uint32_t slot, uint32_t class, uint32_t now);
/* The object is of this class since it was last used, which was at tick `when`. */
void tarn_reuse_used(struct tarn_reuse *r, uint32_t key, uint32_t class, uint32_t when);
/* The object left its slot. evicted: a put of the key may show that it would have been used. */
void tarn_reuse_left(struct tarn_reuse *r, uint32_t key, bool evicted);

/*
 * Looks at all sampled keys and computes the worth of every class and bucket of ages; to be called now and
 * then, it takes about 0.2 ms. turnover: ticks that an object stays in the pool, about; 0: not known.
 */
void tarn_reuse_learn(struct tarn_reuse *r, uint32_t now, uint32_t turnover);
/* Uses a tick of room. Before anything was learned it falls with age and is the same for all classes. */
double tarn_reuse_worth(const struct tarn_reuse *r, uint32_t class, uint32_t bucket);

#endif
