/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evictable objects lie in cells, one for each class and bucket of ages. All objects of a cell are worth
 * about the same, so an eviction takes the first object of the first cell that has any. As an object ages it
 * moves to the next cell, about 10 times until it is evicted; every victim pays for some moves, ticks for
 * more.
 *
 * Within a cell objects lie about in the order of their last use, oldest first. Those put within one tick lie
 * the other way round: the end of a chain of blocks goes before its beginning. Objects that others continue
 * lie in no cell.
 */
#include "server/store/evict.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/store/lazy.h"
#include "server/store/reuse.h"

#define NONE UINT32_MAX
#define CELLS (TARN_CLASSES * TARN_AGES)
#define WORDS (CELLS / 64)
#define COMMON_USES 4 /* an object used so often is a beginning of many chains, not of one that goes on */
#define USES_MAX 200
#define AHEAD_MAX 100     /* ticks that a client's clock may be ahead */
#define MOVES_A_VICTIM 16 /* objects that an eviction looks at, to move them */
#define MOVES_A_TICK 8192 /* the same for a tick */
#define LOOKS_MAX 4096    /* victims that turn out to be used meanwhile, before one is taken nevertheless */
#define CHAIN_LOOKS 4096  /* objects of a chain that are looked at for a circle */
#define LEARN_PUTS_MIN 1024
#define LEARN_SHARE 16 /* it learns after puts of this part of all objects */
#define REMEMBERED_MIN 65536
#define REMEMBERED_MAX (1u << 20)

struct entry {
    uint32_t prev, next; /* in the cell */
    uint32_t key;
    uint32_t seen;                /* touch when it was looked at last */
    uint32_t born;                /* a number of its own; 0: the slot is free */
    struct tarn_evict_hold after; /* on what it continues */
    uint32_t followers;
    uint16_t cell;
    uint8_t inherited, uses;
    bool continued; /* it has had followers */
    bool added, pinned;
    bool listed; /* it lies in its cell */
};

struct tarn_evict {
    struct tarn_evict_view view;
    struct tarn_reuse *reuse; /* NULL: LRU */
    struct entry *entries;    /* by slot */
    uint32_t n;               /* added */
    uint32_t births;
    uint32_t last; /* the slot added last; NONE: removed or moved since */
    uint32_t head[CELLS], tail[CELLS];
    uint16_t rank[CELLS], by_rank[CELLS]; /* of cells: the order in which their objects go */
    uint64_t filled[WORDS];               /* cells that hold objects, by rank */
    uint32_t swept;                       /* all cells were looked through for this tick */
    uint32_t sweep;                       /* the next to be looked at; CELLS: done */
    uint64_t puts, learned_puts;
    uint64_t turnover_puts;  /* puts when the present turnover began */
    uint32_t turnover_began; /* its tick */
    uint32_t turnover;       /* ticks that as many puts took as there are objects; 0: not known */
    uint32_t *remembered;    /* by key: its upper 24 bits and the uses of an evicted object. One that comes to
                                the same place takes it over. */
    uint32_t remembered_mask;
};

/* --- cells -------------------------------------------------------------------------------------- */

static uint32_t age(const struct tarn_evict *e, uint32_t slot, uint32_t now)
{
    int32_t ticks = (int32_t)(now - atomic_load_explicit(&e->view.touch[slot], memory_order_relaxed));
    return ticks > 0 ? (uint32_t)ticks : 0;
}

static uint32_t class_of(const struct tarn_evict *e, const struct entry *o)
{
    if (!e->reuse)
        return 0;
    uint32_t turn = (uint32_t)o->inherited + o->uses;
    uint32_t step = turn < 4 ? turn : turn < 6 ? 4 : turn < 9 ? 5 : turn < 16 ? 6 : 7;
    return TARN_CLASS_STEP * step + o->continued;
}

static void mark(struct tarn_evict *e, uint32_t cell, bool filled)
{
    uint64_t bit = 1ull << e->rank[cell] % 64;
    if (filled)
        e->filled[e->rank[cell] / 64] |= bit;
    else
        e->filled[e->rank[cell] / 64] &= ~bit;
}

static void unlist(struct tarn_evict *e, uint32_t slot)
{
    struct entry *o = &e->entries[slot];
    if (!o->listed)
        return;
    o->listed = false;
    if (o->prev != NONE)
        e->entries[o->prev].next = o->next;
    else
        e->head[o->cell] = o->next;
    if (o->next != NONE)
        e->entries[o->next].prev = o->prev;
    else
        e->tail[o->cell] = o->prev;
    if (e->head[o->cell] == NONE)
        mark(e, o->cell, false);
    if (e->last == slot)
        e->last = NONE;
}

/* Lists it before `next`; NONE: at the end. */
static void list(struct tarn_evict *e, uint32_t slot, uint32_t next)
{
    struct entry *o = &e->entries[slot];
    o->listed = true;
    o->next = next;
    o->prev = next != NONE ? e->entries[next].prev : e->tail[o->cell];
    if (o->prev != NONE)
        e->entries[o->prev].next = slot;
    else
        e->head[o->cell] = slot;
    if (next != NONE)
        e->entries[next].prev = slot;
    else
        e->tail[o->cell] = slot;
    mark(e, o->cell, true);
}

/* Moves it to the cell of its class and age, if it may be evicted. */
static void place(struct tarn_evict *e, uint32_t slot, uint32_t now)
{
    struct entry *o = &e->entries[slot];
    unlist(e, slot);
    o->cell = (uint16_t)(class_of(e, o) * TARN_AGES + tarn_age_bucket(age(e, slot, now)));
    if (o->added && !o->pinned && o->followers == 0)
        list(e, slot, NONE);
}

/* Looks whether it was used since it was looked at last. If so it moves. */
static bool notice_use(struct tarn_evict *e, uint32_t slot, uint32_t now)
{
    struct entry *o = &e->entries[slot];
    uint32_t touch = atomic_load_explicit(&e->view.touch[slot], memory_order_relaxed);
    if ((int32_t)(touch - now) > AHEAD_MAX) {
        touch = now;
        atomic_store_explicit(&e->view.touch[slot], now, memory_order_relaxed);
    }
    if (touch == o->seen)
        return false;
    o->seen = touch;
    if (o->uses < USES_MAX)
        o->uses++;
    if (e->reuse)
        tarn_reuse_used(e->reuse, o->key, class_of(e, o), touch);
    place(e, slot, now);
    return true;
}

/* Moves objects that have outgrown their cells, until all cells were looked through in this tick. */
static void sweep(struct tarn_evict *e, uint32_t now, uint32_t moves)
{
    if (e->sweep == CELLS && e->swept == now)
        return;
    if (e->sweep == CELLS) {
        e->sweep = 0;
        e->swept = now;
    }
    for (; e->sweep < CELLS; e->sweep++) {
        /* Old ones first: those who come into the same cell together stay in order. */
        uint32_t bucket = TARN_AGES - 1 - e->sweep / TARN_CLASSES, slot,
                 cell = e->sweep % TARN_CLASSES * TARN_AGES + bucket;
        while ((slot = e->head[cell]) != NONE) {
            if (!notice_use(e, slot, now)) {
                if (tarn_age_bucket(age(e, slot, now)) <= bucket)
                    break;
                place(e, slot, now);
            }
            if (--moves == 0)
                return;
        }
    }
}

/* --- the order of cells ------------------------------------------------------------------------- */

struct cell_worth {
    double worth;
    uint32_t cell;
};

/* Least worth first; if alike, older first. */
static int compare_worth(const void *a, const void *b)
{
    const struct cell_worth *x = a, *y = b;
    if (x->worth != y->worth)
        return x->worth < y->worth ? -1 : 1;
    int older = (int)(y->cell % TARN_AGES) - (int)(x->cell % TARN_AGES);
    return older ? older : (int)x->cell - (int)y->cell;
}

static double worth_of_cell(const struct tarn_evict *e, uint32_t cell)
{
    uint32_t class = cell / TARN_AGES, bucket = cell % TARN_AGES;
    if (!e->reuse)
        return 0;
    double begin = tarn_reuse_worth(e->reuse, class, bucket);
    return bucket + 1 < TARN_AGES ? (begin + tarn_reuse_worth(e->reuse, class, bucket + 1)) / 2 : begin;
}

static void order_cells(struct tarn_evict *e)
{
    struct cell_worth order[CELLS];
    for (uint32_t i = 0; i < CELLS; i++)
        order[i] = (struct cell_worth){worth_of_cell(e, i), i};
    qsort(order, CELLS, sizeof(order[0]), compare_worth);
    for (uint32_t i = 0; i < CELLS; i++) {
        e->by_rank[i] = (uint16_t)order[i].cell;
        e->rank[order[i].cell] = (uint16_t)i;
    }
    for (uint32_t i = 0; i < CELLS; i++)
        mark(e, i, e->head[i] != NONE);
}

static void learn(struct tarn_evict *e, uint32_t now)
{
    uint64_t every = e->n / LEARN_SHARE > LEARN_PUTS_MIN ? e->n / LEARN_SHARE : LEARN_PUTS_MIN;
    if (!e->reuse || e->puts - e->learned_puts < every)
        return;
    e->learned_puts = e->puts;
    uint32_t ticks = now - e->turnover_began;
    if (e->puts - e->turnover_puts >= e->n) {
        e->turnover = ticks;
        e->turnover_began = now;
        e->turnover_puts = e->puts;
    } else if (ticks > e->turnover) {
        e->turnover = ticks;
    }
    tarn_reuse_learn(e->reuse, now, e->turnover);
    order_cells(e);
}

/* --- objects ------------------------------------------------------------------------------------ */

/* What is held is still there: it may have left, and its slot may be another's. */
static bool holds(const struct tarn_evict *e, struct tarn_evict_hold h)
{
    return h.born && e->entries[h.slot].born == h.born;
}

struct tarn_evict_hold tarn_evict_hold(struct tarn_evict *e, uint32_t slot)
{
    e->entries[slot].followers++;
    unlist(e, slot);
    return (struct tarn_evict_hold){slot, e->entries[slot].born};
}

void tarn_evict_let_go(struct tarn_evict *e, struct tarn_evict_hold hold, uint32_t now)
{
    if (holds(e, hold) && --e->entries[hold.slot].followers == 0 && !notice_use(e, hold.slot, now))
        place(e, hold.slot, now);
}

void tarn_evict_reserve(struct tarn_evict *e, uint32_t slot, struct tarn_evict_hold after)
{
    e->births = e->births == UINT32_MAX ? 1 : e->births + 1;
    e->entries[slot] = (struct entry){.born = e->births, .after = after};
}

/* Whether `slot` is among what `from` continues, itself included; also if that is too far to tell. */
static bool comes_before(const struct tarn_evict *e, uint32_t slot, uint32_t from)
{
    for (int i = 0; i < CHAIN_LOOKS; i++) {
        if (from == slot)
            return true;
        if (!holds(e, e->entries[from].after))
            return false;
        from = e->entries[from].after.slot;
    }
    return true;
}

void tarn_evict_continue(struct tarn_evict *e, uint32_t slot, struct tarn_evict_hold after, uint32_t now)
{
    struct entry *o = &e->entries[slot];
    /* Two that continue each other would stay for ever. */
    bool circle = o->followers > 0 && comes_before(e, slot, after.slot);
    if (holds(e, after) && !holds(e, o->after) && !circle)
        o->after = after;
    else
        tarn_evict_let_go(e, after, now);
}

/* What an object knows from the one that it continues. */
static void inherit(struct tarn_evict *e, struct entry *o, uint32_t after, uint32_t now)
{
    struct entry *a = &e->entries[after];
    if (!a->added)
        return;
    notice_use(e, after, now);
    uint32_t turn = (uint32_t)a->inherited + a->uses;
    o->inherited = (uint8_t)(a->uses >= COMMON_USES ? 0 : turn < USES_MAX ? turn : USES_MAX);
    if (!a->continued && e->reuse) {
        a->continued = true;
        tarn_reuse_used(e->reuse, a->key, class_of(e, a), a->seen);
    }
}

static uint32_t *memory_of(struct tarn_evict *e, uint32_t key)
{
    return &e->remembered[key & e->remembered_mask];
}

static void remember(struct tarn_evict *e, const struct entry *o)
{
    uint32_t turn = (uint32_t)o->inherited + o->uses;
    *memory_of(e, o->key) = (o->key & ~0xffu) | (turn < USES_MAX ? turn : USES_MAX);
}

static void recall(struct tarn_evict *e, struct entry *o)
{
    uint32_t *m = memory_of(e, o->key);
    if ((*m & ~0xffu) != (o->key & ~0xffu))
        return;
    if ((*m & 0xff) > o->inherited)
        o->inherited = (uint8_t)(*m & 0xff);
    *m = 0;
}

/* Of a tick's objects the last goes first. */
static void place_new(struct tarn_evict *e, uint32_t slot, uint32_t now)
{
    struct entry *o = &e->entries[slot];
    o->cell = (uint16_t)(class_of(e, o) * TARN_AGES + tarn_age_bucket(age(e, slot, now)));
    if (o->pinned || o->followers > 0)
        return;
    bool together =
        e->last != NONE && e->entries[e->last].cell == o->cell && e->entries[e->last].seen == o->seen;
    list(e, slot, together ? e->last : NONE);
    e->last = slot;
}

void tarn_evict_add(struct tarn_evict *e, uint32_t slot, uint32_t key, bool pinned, uint32_t now)
{
    struct entry *o = &e->entries[slot];
    o->key = key;
    o->seen = atomic_load_explicit(&e->view.touch[slot], memory_order_relaxed);
    o->added = true;
    o->pinned = pinned;
    e->n++;
    e->puts++;
    if (e->reuse) {
        if (holds(e, o->after))
            inherit(e, o, o->after.slot, now);
        recall(e, o);
        tarn_reuse_put(e->reuse, key, slot, class_of(e, o), o->seen);
    }
    place_new(e, slot, now);
}

void tarn_evict_pin(struct tarn_evict *e, uint32_t slot, bool pinned, uint32_t now)
{
    e->entries[slot].pinned = pinned;
    place(e, slot, now);
}

void tarn_evict_remove(struct tarn_evict *e, uint32_t slot, bool evicted, uint32_t now)
{
    struct entry *o = &e->entries[slot];
    unlist(e, slot);
    o->born = 0;
    tarn_evict_let_go(e, o->after, now);
    if (!o->added)
        return;
    o->added = false;
    e->n--;
    if (e->reuse)
        tarn_reuse_left(e->reuse, o->key, evicted);
    if (e->reuse && evicted)
        remember(e, o);
}

/* --- victims ------------------------------------------------------------------------------------ */

static uint32_t nth_idle(const struct tarn_evict *e, uint32_t nth)
{
    for (uint32_t w = 0; w < WORDS; w++) {
        for (uint64_t bits = e->filled[w]; bits; bits &= bits - 1) {
            uint32_t cell = e->by_rank[w * 64 + (uint32_t)__builtin_ctzll(bits)];
            for (uint32_t slot = e->head[cell]; slot != NONE; slot = e->entries[slot].next) {
                if (e->view.idle(e->view.arg, slot) && nth-- == 0)
                    return slot;
            }
        }
    }
    return NONE;
}

uint32_t tarn_evict_victim(struct tarn_evict *e, uint32_t now, uint32_t nth)
{
    uint32_t slot = NONE;
    learn(e, now);
    sweep(e, now, MOVES_A_VICTIM);
    for (int looks = 0; looks < LOOKS_MAX; looks++) {
        slot = nth_idle(e, nth);
        if (slot == NONE || !notice_use(e, slot, now))
            break;
    }
    return slot;
}

uint64_t tarn_evict_rank(const struct tarn_evict *e, uint32_t slot, uint32_t now)
{
    const struct entry *o = &e->entries[slot];
    uint32_t a = age(e, slot, now), rank = e->rank[class_of(e, o) * TARN_AGES + tarn_age_bucket(a)];
    return (uint64_t)(o->followers > 0) << 63 | (uint64_t)rank << 32 | (UINT32_MAX - a);
}

void tarn_evict_tick(struct tarn_evict *e, uint32_t now)
{
    sweep(e, now, MOVES_A_TICK);
}

/* --- making ------------------------------------------------------------------------------------- */

int tarn_eviction_parse(const char *name, enum tarn_eviction *policy_p)
{
    static const char *const names[] = {[TARN_EVICT_LRU] = "lru", [TARN_EVICT_ADAPTIVE] = "adaptive"};
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *policy_p = (enum tarn_eviction)i;
            return 0;
        }
    }
    return tarn_fail(TARN_E_CONFIG, "--eviction %s: there is no such policy: give lru or adaptive", name);
}

int tarn_evict_new(const struct tarn_evict_view *view, enum tarn_eviction policy, struct tarn_evict **e_p)
{
    struct tarn_evict *e = calloc(1, sizeof(*e));
    if (!e)
        return tarn_fail(TARN_E_NO_MEMORY, "eviction: out of memory");
    *e = (struct tarn_evict){
        .view = *view, .last = NONE, .swept = NONE, .sweep = CELLS, .remembered_mask = REMEMBERED_MIN - 1};
    for (uint32_t i = 0; i < CELLS; i++)
        e->head[i] = e->tail[i] = NONE;
    while (e->remembered_mask < view->nslots && e->remembered_mask < REMEMBERED_MAX - 1)
        e->remembered_mask = 2 * e->remembered_mask + 1;
    e->entries = tarn_lazy_new(view->nslots * sizeof(struct entry));
    int rc = e->entries ? 0 : tarn_fail(TARN_E_NO_MEMORY, "eviction: %u slots: out of memory", view->nslots);
    if (rc == 0 && policy == TARN_EVICT_ADAPTIVE) {
        e->remembered = calloc(e->remembered_mask + 1ul, sizeof(*e->remembered));
        rc = e->remembered ? tarn_reuse_new(view->touch, &e->reuse)
                           : tarn_fail(TARN_E_NO_MEMORY, "eviction: out of memory");
    }
    if (rc != 0) {
        tarn_evict_free(e);
        return rc;
    }
    order_cells(e);
    *e_p = e;
    return 0;
}

void tarn_evict_free(struct tarn_evict *e)
{
    if (!e)
        return;
    tarn_lazy_free(e->entries, e->view.nslots * sizeof(struct entry));
    tarn_reuse_free(e->reuse);
    free(e->remembered);
    free(e);
}
