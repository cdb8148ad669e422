// Visits every moment that ranks of recovery_model.py can come to.
//
// What one rank or one router does is asked of Python, once for each: its states are numbers here,
// with as much about them as events and checks need. What follows is the model's, event by event:
// `after` is Model.after, `settle` is Model._settled, and so on. Moments are kept whole, as two
// numbers: of the ranks, and of the routers, the cut and the faults. None is taken for another.

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 5, ROOM = 256, RECENT = 1 << 16 }; // ranks; moments after one; see `search_run`
enum { NONE = -1 };

// What is asked. First what a rank does that depends on nothing else; then with arguments.
enum act { POP, MUTE, RETURNED, HOME, ENDS, DOWN, DIES, CLOSES, OWN };
enum asked { TOLD = OWN, LEAVES, HEARS, LOSES, EXPIRES, STOPS };
enum head { NOTHING, REPORT, BALLOT, CLOSED, GONE }; // what a rank has said first
enum result { WAITS, OUT, VIEWS };
enum kind { KILL = 1, SPLIT = 2, CUT = 4, LATE = 8, DEAF = 16, CLOSE = 32 };
enum outcome { ALL, MORE, WRONG, RAISED };

// Sets of ranks are bits.
struct rank {
    uint8_t alive, chief, gone, closed, joined, told, spare;
    uint8_t head, all, proved; // `all` and `proved`: whom it says to be gone
    int32_t result, what;
};

struct router {
    uint8_t recovery, gone, dead, settled, waits;
    int32_t known, ballot;
};

struct words {
    int32_t count, ranks[MOST], words[MOST];
};

struct answer {
    int32_t first, second;
};

typedef int ask_fn(int act, int a, int b, int c, struct answer *);

struct moment {
    uint32_t ranks[MOST], routers[MOST], cut, faults;
};

struct list {
    int count;
    struct moment all[ROOM];
};

// Tuples of numbers, each once. Its place is its number.
struct tuples {
    uint64_t *slots; // half of a digest, and a number + 1
    uint32_t *all;
    uint64_t mask, count;
    int width;
};

struct memo {
    uint64_t key;
    struct answer it;
};

struct search {
    int size;
    unsigned kinds;
    bool deaths_only, reduce, heedless;
    ask_fn *ask;
    struct rank *ranks;
    int32_t (*own)[OWN]; // of a rank, by act
    struct router *routers;
    struct words *words;
    uint8_t *views;
    uint32_t rank_count, router_count, words_count, view_count, none;
    struct memo *memos;
    uint64_t memo_mask, memo_count;
    struct tuples left, right, moments, ends;
    uint32_t *parents;
    uint64_t at, wrong_at, parents_room;
    bool wrong, failed;
    struct list *list;
    struct moment *recent;
};

static void *grown(void *old, uint64_t count, uint64_t size)
{
    void *fresh = realloc(old, count * size);
    if (!fresh)
        abort();
    return fresh;
}

// Returns zeros, on huge pages where they are many: they are read in no order.
static void *zeros(uint64_t bytes)
{
    uint64_t huge = 2 << 20;
    void *fresh = aligned_alloc(bytes < huge ? 64 : huge, bytes);
    if (!fresh)
        abort();
    if (bytes >= huge)
        madvise(fresh, bytes, MADV_HUGEPAGE);
    return memset(fresh, 0, bytes);
}

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint64_t digest(const uint32_t *tuple, int width)
{
    uint64_t h = 0;
    for (int i = 0; i < width; i += 2)
        h = mixed(h + 0x9e3779b97f4a7c15u
                  + (tuple[i] | (i + 1 < width ? (uint64_t)tuple[i + 1] << 32 : 0)));
    return h;
}

static void tuples_init(struct tuples *t, int width)
{
    *t = (struct tuples){.mask = 1023, .width = width};
    t->slots = zeros(1024 * sizeof(*t->slots));
    t->all = grown(NULL, 768, 4 * (uint64_t)width);
}

static void tuples_grow(struct tuples *t)
{
    t->mask = 2 * t->mask + 1;
    free(t->slots);
    t->slots = zeros((t->mask + 1) * sizeof(*t->slots));
    t->all = grown(t->all, (t->mask + 1) / 4 * 3, 4 * (uint64_t)t->width);
    for (uint64_t i = 0; i < t->count; i++) {
        uint64_t h = digest(t->all + i * t->width, t->width), at = h & t->mask;
        while (t->slots[at])
            at = (at + 1) & t->mask;
        t->slots[at] = h >> 32 << 32 | (i + 1);
    }
}

static inline bool same(const uint32_t *a, const uint32_t *b, int width)
{
    uint32_t differ = 0;
    for (int i = 0; i < width; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

static uint32_t number(struct tuples *t, const uint32_t *tuple, uint64_t h)
{
    uint64_t at = h & t->mask;
    for (; t->slots[at]; at = (at + 1) & t->mask) {
        uint64_t i = (uint32_t)t->slots[at] - 1;
        if (!((t->slots[at] ^ h) >> 32) && same(t->all + i * t->width, tuple, t->width))
            return i;
    }
    if (t->count >= (t->mask + 1) / 4 * 3) {
        tuples_grow(t);
        return number(t, tuple, h);
    }
    memcpy(t->all + t->count * t->width, tuple, 4 * t->width);
    t->slots[at] = h >> 32 << 32 | ++t->count;
    return t->count - 1;
}

// What Python says.

#define ADD(array, count, value) \
    do { \
        uint32_t n = (count)++; \
        if (!(n & (n - 1))) \
            (array) = grown(array, n ? 2 * n : 1, sizeof(*(array))); \
        (array)[n] = (value); \
    } while (0)

void search_add_rank(struct search *s, const struct rank *rank)
{
    uint32_t n = s->rank_count;
    if (!(n & (n - 1)))
        s->own = grown(s->own, n ? 2 * n : 1, sizeof(*s->own));
    for (int i = 0; i < OWN; i++)
        s->own[n][i] = NONE;
    ADD(s->ranks, s->rank_count, *rank);
}

void search_add_router(struct search *s, const struct router *router)
{
    ADD(s->routers, s->router_count, *router);
}

void search_add_words(struct search *s, const struct words *words)
{
    ADD(s->words, s->words_count, *words);
}

void search_add_view(struct search *s, int ranks)
{
    ADD(s->views, s->view_count, ranks);
}

static struct answer asked(struct search *s, int act, uint32_t a, uint32_t b, uint32_t c)
{
    struct answer it = {0, 0};
    if (!s->failed && s->ask(act, a, b, c, &it)) {
        s->failed = true;
        it = (struct answer){0, 0};
    }
    return it;
}

static uint32_t own(struct search *s, uint32_t rank, enum act act)
{
    if (s->own[rank][act] == NONE) {
        int32_t found = asked(s, act, rank, 0, 0).first; // which may move s->own
        s->own[rank][act] = found;
    }
    return s->own[rank][act];
}

static struct memo *memo_of(struct search *s, uint64_t key)
{
    uint64_t at = mixed(key) & s->memo_mask;
    while (s->memos[at].key && s->memos[at].key != key)
        at = (at + 1) & s->memo_mask;
    return &s->memos[at];
}

// a: 28 bits, b: 26 bits, c: 5 bits; search_run sees to it.
static struct answer outcome(struct search *s, enum asked act, uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t key = (uint64_t)act << 59 | (uint64_t)a << 31 | (uint64_t)b << 5 | c;
    struct memo *found = memo_of(s, key);
    if (found->key)
        return found->it;
    struct answer it = asked(s, act, a, b, c);
    if (2 * ++s->memo_count > s->memo_mask) {
        struct memo *old = s->memos;
        uint64_t room = s->memo_mask + 1;
        s->memo_mask = 2 * room - 1;
        s->memos = zeros(2 * room * sizeof(*old));
        for (uint64_t i = 0; i < room; i++)
            if (old[i].key)
                *memo_of(s, old[i].key) = old[i];
        free(old);
    }
    *memo_of(s, key) = (struct memo){key, it};
    return it;
}

// Moments.

static const struct rank *rank_of(const struct search *s, const struct moment *now, int i)
{
    return &s->ranks[now->ranks[i]];
}

static const struct router *router_of(const struct search *s, const struct moment *now, int i)
{
    return &s->routers[now->routers[i]];
}

static bool cut(const struct search *s, const struct moment *now, int from, int to)
{
    return now->cut >> (from * s->size + to) & 1;
}

static bool apart(const struct search *s, const struct moment *now, int a, int b)
{
    return cut(s, now, a, b) || cut(s, now, b, a);
}

static bool idle(const struct rank *me, const struct router *router)
{
    if (me->head == REPORT)
        return router->settled && (!me->alive || me->result != WAITS);
    if (me->head == BALLOT)
        return router->settled || me->what != router->ballot;
    return me->head == GONE && !(me->all & ~router->gone)
           && (router->settled || !(me->proved & ~router->dead));
}

static bool waits(const struct search *s, const struct moment *now)
{
    for (int i = 0; i < s->size; i++)
        if (rank_of(s, now, i)->alive && rank_of(s, now, i)->result == WAITS)
            return true;
    return false;
}

static void settle(struct search *s, struct moment *now)
{
    for (int i = 0; i < s->size; i++) {
        uint32_t *kept = &now->ranks[i];
        int chief = s->ranks[*kept].chief;
        const struct router router = *router_of(s, now, chief);
        if (s->ranks[*kept].head) {
            if (!rank_of(s, now, chief)->alive || router.gone >> i & 1)
                *kept = own(s, *kept, MUTE);
            else if (router.recovery)
                while (s->ranks[*kept].head && idle(&s->ranks[*kept], &router))
                    *kept = own(s, *kept, POP);
        }
        const struct rank me = s->ranks[*kept];
        if (!me.alive && !me.head)
            *kept = own(s, *kept, ENDS);
        else if (me.alive && me.result != WAITS && (me.told || me.joined))
            *kept = own(s, *kept, RETURNED);
        if (chief == i && s->ranks[*kept].spare)
            *kept = own(s, *kept, HOME);
    }
    for (int i = 0; i < s->size; i++) {
        bool needed = now->routers[i] == s->none || rank_of(s, now, i)->alive;
        for (int j = 0; !needed && j < s->size; j++)
            needed = rank_of(s, now, j)->alive && rank_of(s, now, j)->chief == i;
        if (!needed)
            now->routers[i] = s->none;
    }
    if (waits(s, now))
        return;
    for (int i = 0; i < s->size; i++) {
        now->ranks[i] = own(s, now->ranks[i], ENDS);
        now->routers[i] = s->none;
    }
    now->cut = now->faults = 0;
}

static void reach(struct search *s, struct moment *then)
{
    settle(s, then);
    if (s->list->count == ROOM)
        abort();
    s->list->all[s->list->count++] = *then;
}

static void check(struct search *s, const struct moment *now)
{
    int view = 0;
    for (int i = 0; i < s->size; i++) {
        const struct rank *me = rank_of(s, now, i);
        if (me->alive && me->result >= VIEWS) {
            s->wrong |= (view && view != me->result) || !(s->views[me->result - VIEWS] >> i & 1);
            view = me->result;
        }
    }
}

static void check_end(struct search *s, const struct moment *now)
{
    for (int i = 0; i < s->size; i++) {
        const struct rank *me = rank_of(s, now, i);
        s->wrong |= me->alive && me->result == WAITS;
        s->wrong |= s->deaths_only && me->alive && me->result == OUT && !me->closed;
    }
}

// Events, as they are in the model.

static bool may_leave(const struct search *s, const struct moment *now, int i)
{
    const struct rank *me = rank_of(s, now, i), *it = rank_of(s, now, me->chief);
    const struct router *router = router_of(s, now, me->chief);
    if (me->chief == i)
        return false;
    if (apart(s, now, i, me->chief) || !it->alive)
        return true;
    if (router->recovery)
        return (router->gone >> i & 1) && !me->told;
    return (it->gone | router_of(s, now, it->chief)->gone) >> i & 1;
}

static bool may_lose(const struct search *s, const struct moment *now, int router, int i)
{
    const struct router *it = router_of(s, now, router);
    const struct rank *them = rank_of(s, now, i);
    bool away = apart(s, now, i, router);
    if (i == router)
        return false;
    if (it->gone >> i & 1)
        return !(them->alive || away || it->settled || (it->dead >> i & 1));
    if (away || !them->alive || them->chief > router)
        return true;
    int first = them->chief;
    return first < router && rank_of(s, now, first)->alive && !apart(s, now, i, first);
}

static void lead(struct search *s, struct moment *then, int router, struct answer it)
{
    if (s->failed)
        return;
    then->routers[router] = it.first;
    const struct words words = s->words[it.second];
    for (int k = 0; k < words.count; k++) {
        const struct rank *other = rank_of(s, then, words.ranks[k]);
        uint32_t *kept = &then->ranks[words.ranks[k]];
        if (other->alive && other->chief == router && other->result == WAITS)
            *kept = outcome(s, TOLD, *kept, words.words[k], 0).first;
    }
    reach(s, then);
}

static void up(struct search *s, struct moment then, int i)
{
    const struct rank me = *rank_of(s, &then, i);
    int from = me.head == GONE ? 0 : i; // who says that makes no difference
    then.ranks[i] = own(s, then.ranks[i], POP);
    lead(s, &then, me.chief, outcome(s, HEARS, then.routers[me.chief], me.what, from));
}

static void down(struct search *s, struct moment then, int i)
{
    then.ranks[i] = own(s, then.ranks[i], DOWN);
    reach(s, &then);
}

static void lose(struct search *s, struct moment then, int router, int i)
{
    bool proved = !rank_of(s, &then, i)->alive && !apart(s, &then, i, router);
    lead(s, &then, router, outcome(s, LOSES, then.routers[router], i, proved));
}

static void leave(struct search *s, const struct moment *now, int i, int faults)
{
    const struct rank me = *rank_of(s, now, i);
    const struct router router = *router_of(s, now, me.chief);
    bool proved = !rank_of(s, now, me.chief)->alive && !apart(s, now, i, me.chief);
    bool more = router.gone & ~(me.gone | 1 << me.chief | 1 << i);
    for (int heard = 0; heard <= more; heard++) {
        struct moment then = *now;
        int how = i << 2 | heard << 1 | proved;
        struct answer it = outcome(s, LEAVES, now->ranks[i], heard ? router.known : 0, how);
        then.faults -= faults;
        then.ranks[i] = it.first;
        if (it.second != NONE)
            then.routers[i] = it.second;
        reach(s, &then);
    }
}

static void networks_fail(struct search *s, const struct moment *less)
{
    int size = s->size;
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            if (s->kinds & CUT && a != b && !cut(s, less, a, b)) {
                struct moment then = *less;
                then.cut |= 1u << (a * size + b);
                reach(s, &then);
            }
    if (s->kinds & SPLIT)
        for (unsigned far = 2; far < 1u << size; far += 2) {
            struct moment then = *less;
            for (int a = 0; a < size; a++)
                for (int b = 0; b < size; b++)
                    if ((far >> a ^ far >> b) & 1)
                        then.cut |= 1u << (a * size + b);
            reach(s, &then);
        }
}

static void routers_are_late(struct search *s, const struct moment *now, const struct moment *less)
{
    for (int router = 0; router < s->size; router++) {
        if (!router_of(s, now, router)->recovery)
            continue;
        if (router_of(s, now, router)->waits) {
            struct moment then = *less;
            lead(s, &then, router, outcome(s, EXPIRES, now->routers[router], 0, 0));
        }
        for (int i = 0; i < s->size; i++) {
            bool comes
                = rank_of(s, now, i)->chief < router && !(router_of(s, now, router)->gone >> i & 1);
            if (comes && !may_lose(s, now, router, i))
                lose(s, *less, router, i);
        }
    }
}

static void faults(struct search *s, const struct moment *now)
{
    struct moment less = *now;
    less.faults--;
    for (int i = 0; i < s->size; i++) {
        const struct rank me = *rank_of(s, now, i);
        if (me.alive && s->kinds & KILL) {
            struct moment then = less;
            then.ranks[i] = own(s, now->ranks[i], DIES);
            then.routers[i] = outcome(s, STOPS, now->routers[i], 0, 0).first;
            reach(s, &then);
        }
        if (me.alive && s->kinds & DEAF && me.chief != i && !may_leave(s, now, i))
            leave(s, now, i, 1);
        if (me.alive && s->kinds & CLOSE && !me.closed && me.result != OUT) {
            struct moment then = less;
            then.ranks[i] = own(s, now->ranks[i], CLOSES);
            reach(s, &then);
        }
    }
    if (s->kinds & LATE)
        routers_are_late(s, now, &less);
    networks_fail(s, &less);
}

// What need not be tried: recovery_search.py says why.

// Tells whether a rank may be alone in what it does next: it hears its router, or leaves a dead
// one.
static bool alone(const struct search *s, const struct moment *now, int i)
{
    const struct rank *me = rank_of(s, now, i);
    if (!me->alive || apart(s, now, i, me->chief))
        return false;
    if (rank_of(s, now, me->chief)->alive)
        return me->told;
    if (me->told)
        return false;
    int lost = router_of(s, now, me->chief)->gone & ~me->gone;
    for (int j = i + 1; j < s->size; j++)
        if (rank_of(s, now, j)->alive && rank_of(s, now, j)->chief <= i && lost >> j & 1)
            return false; // it may wait for this one, and hear of its loss only before
    return true;
}

// Returns whom this router's events depend on, itself too; 0 if on more than routers.
static unsigned leans_on(const struct search *s, const struct moment *now, int r)
{
    const struct router *router = router_of(s, now, r);
    unsigned found = 1u << r, every = (1u << s->size) - 1;
    if (!router->recovery)
        return 0;
    for (int i = 0; i < s->size; i++) {
        const struct rank *me = rank_of(s, now, i);
        bool lost = router->gone >> i & 1;
        if (apart(s, now, i, r)) { // healing would make a difference
            if (me->chief == r || !lost)
                return 0;
            if (!me->alive && !router->settled && !(router->dead >> i & 1))
                return 0;
        }
        if (!me->alive)
            continue;
        if (me->chief < r) { // it may come, to stay or to pass
            unsigned heard = router->gone | me->gone | 1u << i | 1u << r;
            if (!lost || (i > r && !(me->gone >> r & 1) && heard != every))
                found |= 1u << me->chief;
        }
        if (me->chief != r || !may_leave(s, now, i))
            continue;
        for (int j = 0; j < s->size; j++) {
            const struct rank *other = rank_of(s, now, j);
            const struct router *its = router_of(s, now, j);
            if (!other->alive || j == i)
                continue;
            if (j > r && !its->recovery) // it may be a router, and hold it against rank i
                found |= 1u << other->chief;
            if (j > r && its->recovery && !(its->gone >> i & 1))
                found |= 1u << j;
            if (j > i && other->chief <= i) // it may wait for rank i
                found |= 1u << other->chief;
        }
    }
    return found;
}

static int events_of(const struct search *s, const struct moment *now, unsigned routers)
{
    int count = 0;
    for (int i = 0; i < s->size; i++) {
        const struct rank *me = rank_of(s, now, i);
        if (routers >> me->chief & 1)
            count += !!me->head + (me->alive && (me->told || may_leave(s, now, i)));
        for (int r = 0; r < s->size; r++)
            count += (routers >> r & 1) && may_lose(s, now, r, i);
    }
    return count;
}

// Returns the routers whose events suffice, those with the fewest; all if none do.
static unsigned suffices(const struct search *s, const struct moment *now, int *events)
{
    unsigned leans[MOST], best = ~0u;
    *events = ROOM;
    for (int r = 0; r < s->size; r++)
        leans[r] = leans_on(s, now, r);
    for (int r = 0; r < s->size; r++) {
        unsigned set = leans[r], done = 1u << r;
        while (set & ~done && leans[r]) {
            int next = __builtin_ctz(set & ~done);
            set = leans[next] ? set | leans[next] : 0;
            done = set ? done | 1u << next : ~0u;
        }
        int count = set ? events_of(s, now, set) : 0;
        if (count && count < *events) {
            *events = count;
            best = set;
        }
    }
    return best;
}

// Reaches all that may come next; returns whether nothing must.
static bool after(struct search *s, const struct moment *now)
{
    int size = s->size, events;
    if (!waits(s, now))
        return true;
    unsigned of = ~0u;
    if (s->reduce && !now->faults) {
        for (int i = 0; i < size; i++)
            if (alone(s, now, i)) {
                if (rank_of(s, now, i)->told)
                    down(s, *now, i);
                else
                    leave(s, now, i, 0);
                return false;
            }
        of = suffices(s, now, &events);
    }
    bool ended = true;
    for (int i = 0; i < size; i++) {
        const struct rank me = *rank_of(s, now, i);
        if (!(of >> me.chief & 1))
            continue;
        if (me.head && !cut(s, now, i, me.chief) && router_of(s, now, me.chief)->recovery) {
            ended = false;
            up(s, *now, i);
        }
        if (me.alive && me.told && !cut(s, now, me.chief, i)) {
            ended = false;
            down(s, *now, i);
        }
        if (me.alive && may_leave(s, now, i)) {
            ended = false;
            leave(s, now, i, 0);
        }
    }
    for (int router = 0; router < size; router++)
        for (int i = 0; i < size && router_of(s, now, router)->recovery; i++)
            if (of >> router & 1 && may_lose(s, now, router, i)) {
                ended = false;
                lose(s, *now, router, i);
            }
    if (now->faults)
        faults(s, now);
    if (now->cut && of == ~0u) {
        struct moment then = *now;
        then.cut = 0;
        reach(s, &then);
    }
    return ended;
}

static bool one_way(const struct search *s, const struct moment *now)
{
    int events;
    if (!s->reduce || now->faults || !waits(s, now))
        return false;
    for (int i = 0; i < s->size; i++)
        if (alone(s, now, i))
            return true;
    suffices(s, now, &events);
    return events == 1;
}

// Goes on while there is but one way; what is between is checked and not kept.
static void follow(struct search *s, struct moment *then, struct list *passed)
{
    struct list next;
    while (one_way(s, then)) {
        next.count = 0;
        s->list = &next;
        after(s, then);
        if (next.count != 1)
            return;
        if (passed)
            passed->all[passed->count++] = *then;
        *then = next.all[0];
        check(s, then);
    }
}

// The search.

static uint64_t pair(struct search *s, const struct moment *now, uint32_t *both)
{
    uint32_t right[MOST + 1];
    memcpy(right, now->routers, 4 * s->size);
    right[s->size] = now->cut << 4 | now->faults;
    both[0] = number(&s->left, now->ranks, digest(now->ranks, s->size));
    both[1] = number(&s->right, right, digest(right, s->size + 1));
    uint64_t h = digest(both, 2);
    __builtin_prefetch(&s->moments.slots[h & s->moments.mask]);
    return h;
}

// Keeps a moment that has not been visited yet.
static void keep(struct search *s, const struct moment *then, const uint32_t *both, uint64_t h)
{
    uint64_t before = s->moments.count;
    number(&s->moments, both, h);
    if (s->moments.count == before)
        return;
    if (before >= s->parents_room)
        s->parents = grown(s->parents, s->parents_room = 2 * before + 1024, 4);
    s->parents[before] = s->at;
    check(s, then);
    if (s->wrong && s->wrong_at == UINT64_MAX)
        s->wrong_at = before;
}

static void keep_end(struct search *s, const struct moment *now)
{
    uint32_t results[MOST];
    for (int i = 0; i < s->size; i++) {
        const struct rank *me = rank_of(s, now, i);
        results[i] = me->alive ? (uint32_t)me->result + 1 : 0;
    }
    number(&s->ends, results, digest(results, s->size));
    check_end(s, now);
    if (s->wrong && s->wrong_at == UINT64_MAX)
        s->wrong_at = s->at;
}

struct search *search_new(int size, unsigned kinds, int deaths_only, int reduce, int heedless,
                          ask_fn *ask)
{
    struct search *s = grown(NULL, 1, sizeof(*s));
    memset(s, 0, sizeof(*s));
    s->size = size;
    s->kinds = kinds;
    s->deaths_only = deaths_only;
    s->reduce = reduce;
    s->heedless = heedless;
    s->ask = ask;
    s->memo_mask = 1023;
    s->memos = zeros(1024 * sizeof(*s->memos));
    s->recent = zeros(RECENT * sizeof(*s->recent));
    s->wrong_at = UINT64_MAX;
    tuples_init(&s->left, size);
    tuples_init(&s->right, size + 1);
    tuples_init(&s->moments, 2);
    tuples_init(&s->ends, size);
    return s;
}

void search_free(struct search *s)
{
    struct tuples *tables[] = {&s->left, &s->right, &s->moments, &s->ends};
    for (int i = 0; i < 4; i++) {
        free(tables[i]->slots);
        free(tables[i]->all);
    }
    free(s->ranks);
    free(s->own);
    free(s->routers);
    free(s->words);
    free(s->views);
    free(s->memos);
    free(s->recent);
    free(s->parents);
    free(s);
}

void search_begin(struct search *s, const struct moment *first, uint32_t none)
{
    uint32_t both[2];
    s->none = none;
    uint64_t h = pair(s, first, both);
    keep(s, first, both, h);
}

void search_moment(const struct search *s, uint64_t at, struct moment *out)
{
    const uint32_t *both = s->moments.all + 2 * at;
    const uint32_t *right = s->right.all + (uint64_t)both[1] * (s->size + 1);
    *out = (struct moment){.cut = right[s->size] >> 4, .faults = right[s->size] & 15};
    memcpy(out->ranks, s->left.all + (uint64_t)both[0] * s->size, 4 * s->size);
    memcpy(out->routers, right, 4 * s->size);
}

static void drop_recent(struct search *s, struct list *next)
{
    int count = 0;
    for (int i = 0; i < next->count; i++) {
        const struct moment then = next->all[i];
        struct moment *recent
            = &s->recent[digest((const uint32_t *)&then, sizeof(then) / 4) & (RECENT - 1)];
        if (memcmp(recent, &then, sizeof(then)))
            next->all[count++] = *recent = then;
    }
    next->count = count;
}

// Goes on, the first first, until no moment is left, one is wrong, or more than `most` are known.
enum outcome search_run(struct search *s, uint64_t most)
{
    for (; s->at < s->moments.count; s->at++) {
        struct moment now;
        struct list next = {.count = 0};
        uint32_t both[ROOM][2];
        uint64_t digests[ROOM];
        if (s->moments.count > most || s->moments.count >= UINT32_MAX / 4 * 3)
            return MORE;
        search_moment(s, s->at, &now);
        s->list = &next;
        if (after(s, &now))
            keep_end(s, &now);
        drop_recent(s, &next); // of most that come again it was so a moment ago
        for (int i = 0; i < next.count; i++) {
            follow(s, &next.all[i], NULL);
            digests[i] = pair(s, &next.all[i], both[i]);
        }
        for (int i = 0; i < next.count; i++)
            keep(s, &next.all[i], both[i], digests[i]);
        if (s->failed || s->rank_count >> 26 || s->router_count >> 26)
            return RAISED;
        if (s->wrong && !s->heedless)
            return WRONG;
    }
    return ALL;
}

// Writes all that may come after a moment.
int search_after(struct search *s, const struct moment *now, struct list *out)
{
    out->count = 0;
    s->list = out;
    return after(s, now);
}

// Writes the moments on the way from one that was visited to one that was reached from there.
void search_way(struct search *s, uint64_t from, uint64_t to, struct list *out)
{
    struct list next = {.count = 0};
    struct moment now, goal;
    search_moment(s, from, &now);
    search_moment(s, to, &goal);
    s->list = &next;
    after(s, &now);
    for (int i = 0; i < next.count; i++) {
        out->count = 0;
        follow(s, &next.all[i], out);
        if (!memcmp(&next.all[i], &goal, sizeof(goal))) {
            out->all[out->count++] = goal;
            return;
        }
    }
    abort();
}

uint32_t search_parent(const struct search *s, uint64_t at)
{
    return s->parents[at];
}

uint64_t search_count(const struct search *s)
{
    return s->moments.count;
}

uint64_t search_wrong(const struct search *s)
{
    return s->wrong_at;
}

// Writes the results of an end that was found, each + 1, 0 of the dead; returns whether there is
// it.
int search_end(const struct search *s, uint64_t at, uint32_t *results)
{
    if (at >= s->ends.count)
        return false;
    memcpy(results, s->ends.all + at * s->size, 4 * s->size);
    return true;
}
